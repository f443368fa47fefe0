//! `[keys]` and `shared_keys`: connection IDs by the keys that the nodes share ([`expressway_keys`]).

use std::path::Path;

use expressway_keys::{Document, Section};
use expressway_settings::{ConfigError, SourceFile};
use expressway_xbpf::BalanceQuic;

use super::Route;
use super::quic::{OUR_LENGTH, QuicConfig};

/// The document as it is now, after paths were made relative to the configuration's folder.
pub(super) fn check(source: &SourceFile, section: &mut Section) -> Result<Document, ConfigError> {
    section.resolve(source.file.parent().unwrap_or(Path::new("")));
    section.check().map_err(|problem| source.at(section.file.span(), problem))
}

/// The configurations of a service with `shared_keys`.
pub(super) fn of_service(
    document: Option<&Document>,
    route: Route,
    has_others: bool,
    server_id: usize,
) -> Result<Vec<QuicConfig>, String> {
    let document = document.ok_or(Section::MISSING)?;
    if route != Route::QuicLb {
        return Err("requires route = \"quic-lb\"".into());
    }
    if has_others {
        return Err("with shared_keys leave out quic_configs and quic_lb: the document has both".into());
    }
    configs(document, server_id)
        .ok_or_else(|| format!("with shared_keys a server ID has at most {} bytes", OUR_LENGTH - NONCE))
}

/// The fewest bytes of a nonce (draft-ietf-quic-load-balancers, section 3).
const NONCE: usize = 4;

/// How connection IDs of the document's keys are read, if server IDs have `server_id` bytes; `None` if that is too many.
pub(in crate::balance) fn configs(document: &Document, server_id: usize) -> Option<Vec<QuicConfig>> {
    let nonce = OUR_LENGTH.checked_sub(server_id)? as u8;
    let of = |keys: &expressway_keys::Keys| {
        let quic = BalanceQuic::encrypted(server_id as u8, nonce, keys.connection_ids)?;
        Some(QuicConfig { config: keys.config, quic })
    };
    document.all().map(|(_, keys)| of(keys)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use expressway_keys::Signer;

    use super::super::Config;
    use super::*;

    /// A folder with a document.
    struct Folder {
        folder: tempfile::TempDir,
        signer: Signer,
    }

    impl Folder {
        fn new(document: &Document) -> Self {
            let made = Self { folder: tempfile::tempdir().unwrap(), signer: Signer::random().unwrap() };
            std::fs::write(made.path("signer.pub"), made.signer.public_pem().unwrap()).unwrap();
            let file = made.path("shared.keys");
            std::fs::write(&file, document.signed(&made.signer).unwrap()).unwrap();
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
            made
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn parse(&self, head: &str, service: &str, node: &str) -> Result<Config, String> {
            let text = format!(
                "{head}[[service]]\nlisten = \"192.0.2.10:443\"\nprotocol = \"udp\"\n{service}[[service.node]]\naddress = \
                 \"192.0.2.21\"\n{node}"
            );
            Config::parse(SourceFile { file: self.path("b.toml"), text }).map_err(|error| error.to_string())
        }
    }

    const KEYS: &str = "[keys]\nfile = \"shared.keys\"\nsigner = \"signer.pub\"\n";
    const SHARED: &str = "route = \"quic-lb\"\nshared_keys = true\n";

    #[test]
    fn all_keys_of_the_document_are_read() {
        let document = Document::new(1000).unwrap().rotated(2000).unwrap();
        let config = Folder::new(&document).parse(KEYS, SHARED, "").unwrap();
        let service = &config.services[0];
        let previous = document.previous.as_ref().unwrap();
        let expected = [&document.current, &document.next, previous].map(|keys| QuicConfig {
            config: keys.config,
            quic: BalanceQuic::encrypted(4, 8, keys.connection_ids).unwrap(),
        });
        assert!(service.shared_keys && expected.iter().all(|one| service.quic.contains(one)));
        assert_eq!(service.quic.len(), 3);
    }

    #[test]
    fn errors_name_line_and_key() {
        let folder = Folder::new(&Document::new(1000).unwrap());
        let refused = |head: &str, service: &str, node: &str| folder.parse(head, service, node).unwrap_err();
        let long = "server_id = \"010203040506070809\"\n";
        let none = KEYS.replace("shared.keys", "none.keys");
        let stranger = KEYS.replace("signer.pub", "stranger.pub");
        std::fs::write(folder.path("stranger.pub"), Signer::random().unwrap().public_pem().unwrap()).unwrap();
        for (error, expected) in [
            (refused("", SHARED, ""), "service.0.shared_keys: there is no [keys]"),
            (refused(KEYS, "shared_keys = true\n", ""), "requires route = \"quic-lb\""),
            (
                refused(KEYS, &format!("{SHARED}quic_configs = [0]\n"), ""),
                "leave out quic_configs and quic_lb",
            ),
            (refused(KEYS, SHARED, long), "a server ID has at most 8 bytes"),
            (refused(&none, SHARED, ""), "b.toml:2: keys.file: "),
            (refused(&stranger, SHARED, ""), "none of the signers made the signature"),
        ] {
            assert!(error.contains(expected), "{error} | {expected}");
            assert_eq!(error.lines().count(), 1);
        }
    }
}
