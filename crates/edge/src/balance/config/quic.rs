//! `quic_configs` and `[[service.quic_lb]]`: how QUIC connection IDs are read (draft-ietf-quic-load-balancers).

use std::path::{Path, PathBuf};

use expressway_settings::{ConfigError, Key, SourceFile};
use expressway_xbpf::{Balance, BalanceQuic};
use serde::Deserialize;
use toml::Spanned;

/// Bytes of server ID and nonce that `expressway serve` encrypts together.
pub(super) const OUR_LENGTH: usize = 12;

/// How the connection IDs of one rotation codepoint are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicConfig {
    /// The codepoint.
    pub config: u8,
    /// As the program takes it.
    pub quic: BalanceQuic,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawQuic {
    config: Spanned<u8>,
    key_file: Option<Spanned<PathBuf>>,
    nonce: Option<Spanned<u8>>,
}

impl RawQuic {
    /// Where the table is.
    pub(super) fn span(&self) -> std::ops::Range<usize> {
        self.config.span()
    }
}

/// All configurations of a service whose server IDs have `server_id` bytes. Reads the keys.
pub(super) fn configs(
    source: &SourceFile,
    clear: Option<Spanned<Vec<u8>>>,
    tables: Vec<RawQuic>,
    server_id: usize,
) -> Result<Vec<QuicConfig>, ConfigError> {
    let mut configs: Vec<QuicConfig> = Vec::new();
    let mut add = |span: std::ops::Range<usize>, config: u8, quic: BalanceQuic| {
        if config >= Balance::QUIC_CONFIGS {
            return Err(source.at(span, "codepoints are from 0 to 6"));
        }
        if configs.iter().any(|other| other.config == config) {
            return Err(source.at(span, format!("codepoint {config} is given twice")));
        }
        configs.push(QuicConfig { config, quic });
        Ok(())
    };
    let length = server_id as u8;
    let in_clear = BalanceQuic::clear(length);
    let (span, clear) = match clear {
        Some(clear) => (clear.span(), clear.into_inner()),
        None if tables.is_empty() => (0..0, vec![0]),
        None => (0..0, Vec::new()),
    };
    for (config, quic) in clear.into_iter().filter_map(|config| Some((config, in_clear?))) {
        add(span.clone(), config, quic)?;
    }
    for table in tables {
        let span = table.span();
        let quic = match (&table.key_file, in_clear) {
            (Some(file), _) => encrypted(source, file, table.nonce.as_ref(), server_id)?,
            (None, Some(_)) if table.nonce.is_some() => {
                return Err(
                    source.at(span, "`nonce` without `key_file`: its length only matters for encrypted IDs")
                );
            }
            (None, Some(quic)) => quic,
            (None, None) => continue,
        };
        add(span, table.config.into_inner(), quic)?;
    }
    Ok(configs)
}

fn encrypted(
    source: &SourceFile,
    file: &Spanned<PathBuf>,
    nonce: Option<&Spanned<u8>>,
    server_id: usize,
) -> Result<BalanceQuic, ConfigError> {
    let folder = source.file.parent().unwrap_or(Path::new(""));
    let key = Key::read(&folder.join(file.get_ref())).map_err(|problem| source.at(file.span(), problem))?;
    let (span, nonce) = match nonce {
        Some(nonce) => (nonce.span(), *nonce.get_ref()),
        None => (file.span(), OUR_LENGTH.saturating_sub(server_id) as u8),
    };
    let problem = || {
        format!(
            "a nonce has at least 4 bytes, and together with the {server_id} bytes of the server ID at most 19"
        )
    };
    BalanceQuic::encrypted(server_id as u8, nonce, key.0).ok_or_else(|| source.at(span, problem()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::Config;
    use super::*;

    const SERVICE: &str =
        "[[service]]\nlisten = \"192.0.2.10:443\"\nprotocol = \"udp\"\nroute = \"quic-lb\"\n";
    const NODE: &str = "[[service.node]]\naddress = \"192.0.2.21\"\n";

    /// A folder with a key, which is gone with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("expressway-quic-lb-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            for (file, mode) in [("good.key", 0o600), ("open.key", 0o644)] {
                std::fs::write(path.join(file), "8f95f09245765f80256934e50c66207f\n").unwrap();
                let permissions = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(path.join(file), permissions).unwrap();
            }
            Self(path)
        }

        fn parse(&self, tables: &str) -> Result<Vec<QuicConfig>, String> {
            let file = self.0.join("b.toml");
            let text = format!("{SERVICE}{tables}{NODE}");
            let config = Config::parse(SourceFile { file, text }).map_err(|error| error.to_string())?;
            Ok(config.services[0].quic.clone())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn three_configurations_may_be_in_force() {
        let folder = Folder::new("three");
        let next = "[[service.quic_lb]]\nconfig = 2\nkey_file = \"good.key\"\nnonce = 12\n";
        let current = "[[service.quic_lb]]\nconfig = 1\nkey_file = \"good.key\"\n";
        let configs = folder.parse(&format!("quic_configs = [0]\n{next}{current}")).unwrap();
        let key = 0x8f95_f092_4576_5f80_2569_34e5_0c66_207f_u128.to_be_bytes();
        let expected = [
            (0, BalanceQuic::clear(4).unwrap()),
            (2, BalanceQuic::encrypted(4, 12, key).unwrap()),
            (1, BalanceQuic::encrypted(4, 8, key).unwrap()),
        ];
        assert_eq!(configs, expected.map(|(config, quic)| QuicConfig { config, quic }));
        let alone = folder.parse("[[service.quic_lb]]\nconfig = 3\n").unwrap();
        assert_eq!(alone, [QuicConfig { config: 3, quic: BalanceQuic::clear(4).unwrap() }]);
        assert_eq!(folder.parse("").unwrap()[0].config, 0, "in clear, codepoint 0");
    }

    #[test]
    fn errors_name_line_and_key() {
        let folder = Folder::new("errors");
        let table = |keys: &str| folder.parse(&format!("[[service.quic_lb]]\n{keys}\n")).unwrap_err();
        for (error, expected) in [
            (table("config = 7"), "b.toml:6: service.0.quic_lb.0.config: codepoints are from 0 to 6"),
            (table("config = 0\nnonce = 8"), "`nonce` without `key_file`"),
            (table("config = 0\nkey_file = \"open.key\""), "b.toml:7: service.0.quic_lb.0.key_file: "),
            (table("config = 0\nkey_file = \"open.key\""), "chmod 600"),
            (table("config = 0\nkey_file = \"none.key\""), "No such file"),
            (
                table("config = 0\nkey_file = \"good.key\"\nnonce = 3"),
                "service.0.quic_lb.0.nonce: a nonce has at least 4",
            ),
            (table("config = 0\nkey_file = \"good.key\"\nnonce = 16"), "at most 19"),
            (
                folder.parse("quic_configs = [0, 0]\n").unwrap_err(),
                "quic_configs: codepoint 0 is given twice",
            ),
            (folder.parse("quic_configs = [9]\n").unwrap_err(), "codepoints are from 0 to 6"),
            (
                folder.parse("quic_configs = [1]\n[[service.quic_lb]]\nconfig = 1\n").unwrap_err(),
                "codepoint 1 is given twice",
            ),
        ] {
            assert!(error.contains(expected), "{error} | {expected}");
            assert_eq!(error.lines().count(), 1);
        }
    }
}
