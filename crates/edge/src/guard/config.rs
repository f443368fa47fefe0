//! The configuration file of the filter.

use std::path::{Path, PathBuf};

use expressway_settings::{ConfigError, SourceFile, admin, named};
use expressway_xbpf::{Existing, GuardOptions, GuardPayloadSets, GuardPrefix, GuardSet, Keep};
use serde::Deserialize;
use toml::Spanned;

use super::capture::{self, Capture};
use super::learn::{self, Learn};
use super::lists::{Kind, ListSource, Settings};
use super::quic::QuicSection;
use super::rule::{Action, Range, Rule};
use super::sources::{self, Urls};
use super::tcp::TcpSection;
use super::{classifier, list};
use crate::interfaces::{AttachOptions, Mode};

/// What is done about fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragments {
    /// Rules decide about first ones; later ones have no ports.
    #[default]
    Pass,
    /// All are dropped.
    Drop,
}

impl Fragments {
    const NAMES: [(&'static str, Self); 2] = [("pass", Self::Pass), ("drop", Self::Drop)];
}

named!(Fragments);

fn yes() -> bool {
    true
}

fn table() -> u32 {
    65_536
}

fn pass() -> Action {
    Action::Pass
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    interfaces: Spanned<Vec<String>>,
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    replace: bool,
    #[serde(default)]
    pin: bool,
    #[serde(default)]
    chain: Option<Spanned<bool>>,
    #[serde(default)]
    allow: Vec<Spanned<String>>,
    #[serde(default)]
    block: Vec<Spanned<String>>,
    #[serde(default)]
    allow_file: Option<PathBuf>,
    #[serde(default)]
    block_file: Option<PathBuf>,
    allow_url: Option<Spanned<Urls>>,
    block_url: Option<Spanned<Urls>>,
    #[serde(default)]
    lists: sources::Section,
    #[serde(default)]
    dry_run: bool,
    #[serde(default = "yes")]
    drop_malformed: bool,
    #[serde(default)]
    fragments: Fragments,
    #[serde(default = "pass")]
    default: Action,
    #[serde(default)]
    drop_amplification: bool,
    #[serde(default)]
    quic: QuicSection,
    #[serde(default)]
    tcp: TcpSection,
    #[serde(default = "table")]
    buckets: u32,
    #[serde(default = "table")]
    bans: u32,
    #[serde(default)]
    rule: Vec<Spanned<Rule>>,
    capture: Option<capture::Section>,
    learn: Option<learn::Section>,
    admin: Option<admin::Section>,
}

/// The filter's file, with its lists, ready to be loaded.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file's text.
    pub text: String,
    /// Interfaces that the program is on.
    pub interfaces: Vec<String>,
    /// How it is there.
    pub attach: AttachOptions,
    /// What it decides by. The lists are those of [`Config::join`].
    pub options: GuardOptions,
    /// Lists in files and with servers.
    pub sources: Vec<ListSource>,
    /// How they are followed.
    pub lists: Settings,
    /// Entries in the file itself, to allow and to block.
    pub(super) inline: [Vec<GuardPrefix>; 2],
    /// The names of its rules.
    pub rules: Vec<String>,
    /// Where samples of what is dropped go.
    pub capture: Option<Capture>,
    /// How sources are learned that are preferred in an attack.
    pub learn: Option<Learn>,
    /// Where statistics are served.
    pub admin: Option<admin::Section>,
}

impl Config {
    /// Reads the file and the lists that it names, which are relative to its folder.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let source = SourceFile::read(path)?;
        let file: File = source.parse()?;
        let interfaces = file.interfaces.get_ref();
        if interfaces.is_empty() {
            return Err(source.at(file.interfaces.span(), "names no interface"));
        }
        let chain = file.chain.as_ref().filter(|chain| *chain.get_ref());
        if let Some(chain) = chain
            && file.pin
        {
            let problem = "cannot be combined with `pin`: a dispatcher's programs end with their process";
            return Err(source.at(chain.span(), problem));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let inline = |entries: &[Spanned<String>]| -> Result<Vec<GuardPrefix>, ConfigError> {
            let prefix = |entry: &Spanned<String>| {
                list::prefix(entry.get_ref()).map_err(|problem| source.at(entry.span(), problem))
            };
            entries.iter().map(prefix).collect()
        };
        let inline = [inline(&file.allow)?, inline(&file.block)?];
        let mut listed = sources::files(Kind::Allow, folder, file.allow_file.as_deref())?;
        listed.extend(sources::files(Kind::Block, folder, file.block_file.as_deref())?);
        listed.extend(sources::urls(Kind::Allow, &source, file.allow_url.as_ref())?);
        listed.extend(sources::urls(Kind::Block, &source, file.block_url.as_ref())?);
        let lists = file.lists.settings(&source, folder)?;
        let rules = rules(&source, &file)?;
        let learn = file.learn.as_ref().map(|one| one.learn(&source, folder)).transpose()?;
        if let Some(learn) = &learn {
            learn::check(learn)?;
        }
        let capture = file.capture.as_ref().map(|one| one.capture(&source, folder)).transpose()?;
        let options = GuardOptions {
            dry_run: file.dry_run,
            drop_malformed: file.drop_malformed,
            drop_fragments: file.fragments == Fragments::Drop,
            drop_default: file.default == Action::Drop,
            quic: file.quic.quic(&source, folder)?,
            syn: file.tcp.syn(&source)?,
            allow: Vec::new(),
            block: Vec::new(),
            classifier: classifier::compile(&rules),
            buckets: file.buckets,
            bans: file.bans,
            keep_bans: false,
            learning: learn.as_ref().map(|learn| learn.learning),
            sampling: capture.as_ref().map(|capture| capture.sampling.clone()),
        };
        let mut config = Self {
            interfaces: interfaces.clone(),
            attach: AttachOptions {
                mode: file.mode,
                existing: if file.replace { Existing::Replace } else { Existing::Refuse },
                keep: if file.pin { Keep::Pinned } else { Keep::Process },
                chain: chain.is_some(),
            },
            options,
            sources: listed,
            lists,
            inline,
            rules: rules.into_iter().map(|(rule, _)| rule.name).collect(),
            capture,
            learn,
            admin: source.admin(file.admin)?,
            text: source.text,
        };
        config.join().map_err(|problem| SourceFile::whole(path, problem))?;
        Ok(config)
    }
}

/// The file's rules, and behind them those that it asks for by a word.
fn rules(source: &SourceFile, file: &File) -> Result<Vec<(Rule, expressway_xbpf::GuardRule)>, ConfigError> {
    let mut rules: Vec<(Rule, _)> = Vec::new();
    for rule in &file.rule {
        let one = rule.get_ref();
        let effect = one.effect().map_err(|(key, problem)| {
            let mut error = source.at(rule.span(), problem);
            error.key = format!("rule.{}.{key}", rules.len());
            error
        })?;
        if one.name.is_empty() || rules.iter().any(|(other, _)| other.name == one.name) {
            let problem = format!("`{}` is empty or the name of another rule", one.name);
            return Err(source.at(rule.span(), problem));
        }
        rules.push((one.clone(), effect));
        if one.payload.is_empty() {
            continue;
        }
        let places = classifier::probes(rules.iter().map(|(rule, _)| rule)).len();
        if places > GuardPayloadSets::PROBES {
            let problem = format!(
                "with it, rules look at {places} different places in payloads; at most {} are allowed: reuse the offsets, lengths and masks of other rules",
                GuardPayloadSets::PROBES
            );
            return Err(source.at(rule.span(), problem));
        }
    }
    if file.drop_amplification {
        let ports: Vec<String> = classifier::AMPLIFIERS.iter().map(u16::to_string).collect();
        let (port, Range(shortest, longest)) = classifier::NTP;
        let texts = [
            format!(
                "name = \"amplification\"\nprotocol = \"udp\"\nsource_port = [{}]\naction = \"drop\"",
                ports.join(",")
            ),
            format!(
                "name = \"amplification-ntp\"\nprotocol = \"udp\"\nsource_port = {port}\nlength = \"{shortest}-{longest}\"\n\
                 action = \"drop\""
            ),
        ];
        for text in texts {
            let rule: Rule = SourceFile { file: source.file.clone(), text }.parse()?;
            let effect = expressway_xbpf::GuardRule::Drop;
            rules.push((rule, effect));
        }
    }
    if rules.len() > GuardSet::RULES {
        let problem = format!("{} rules: {} at most", rules.len(), GuardSet::RULES);
        return Err(SourceFile::whole(&source.file, problem));
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(name: &str, text: &str) -> Result<Config, ConfigError> {
        let folder = std::env::temp_dir().join(format!("expressway-guard-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("list"), "203.0.113.0/24\n").unwrap();
        let file = folder.join("guard.toml");
        std::fs::write(&file, text).unwrap();
        let result = Config::load(&file);
        std::fs::remove_dir_all(&folder).unwrap();
        result
    }

    #[test]
    fn the_smallest_file_is_read() {
        let config = load(
            "smallest",
            "interfaces = [\"eth0\"]\nallow = [\"192.0.2.0/24\"]\nblock = [\"198.51.100.0/24\"]\nblock_file = \"list\"\n\
             [[rule]]\nname = \"dns-answers\"\nprotocol = \"udp\"\nsource_port = 53\nlimit = \"10k/s\"\n",
        )
        .unwrap();
        assert_eq!(config.rules, ["dns-answers"]);
        assert_eq!((config.options.allow.len(), config.options.block.len()), (1, 2));
        assert_eq!(config.options.classifier.rules.len(), 1);
    }

    #[test]
    fn errors_name_line_and_key() {
        let rule = "[[rule]]\nname = \"a\"\n";
        let lists = |key: &str| format!("interfaces = [\"a\"]\n[lists]\n{key}");
        let learn = |key: &str| format!("interfaces = [\"a\"]\n[learn]\nfile = \"a\"\n{key}");
        let capture = |key: &str| format!("interfaces = [\"a\"]\n[capture]\nfile = \"a\"\n{key}");
        for (name, text, line, words) in [
            ("none", "interfaces = []\n".to_owned(), 1, "no interface"),
            ("key", "interfaces = [\"a\"]\nblok = []\n".to_owned(), 2, "block"),
            ("prefix", "interfaces = [\"a\"]\nblock = [\"1.2.3.4/33\"]\n".to_owned(), 2, "32 bits"),
            ("idle", format!("interfaces = [\"a\"]\n{rule}"), 2, "neither"),
            (
                "ban",
                format!("interfaces = [\"a\"]\n{rule}limit = \"1/s\"\nban = \"1m\"\n"),
                2,
                "per = \"source\"",
            ),
            ("pin", "interfaces = [\"a\"]\npin = true\nchain = true\n".to_owned(), 3, "cannot be combined"),
            (
                "twice",
                format!("interfaces = [\"a\"]\n{rule}action = \"drop\"\n{rule}action = \"drop\"\n"),
                5,
                "another",
            ),
            ("url", "interfaces = [\"a\"]\nblock_url = \"lists.example\"\n".to_owned(), 2, "not a URL"),
            (
                "urls",
                "interfaces = [\"a\"]\nblock_url = [\n\"http://a\", \"ftp://b\"]\n".to_owned(),
                2,
                "not a URL",
            ),
            (
                "twice",
                "interfaces = [\"a\"]\nallow_url = [\"http://a\", \"http://a\"]\n".to_owned(),
                2,
                "twice",
            ),
            ("ca", lists("ca = \"gone.pem\"\n"), 3, "gone.pem"),
            ("often", lists("interval = \"1ms\"\n"), 3, "1s to"),
            ("patience", lists("timeout = \"1h\"\n"), 3, "1s to"),
            ("large", lists("size = \"1TiB\"\n"), 3, "unit"),
            ("larger", lists("size = \"100GiB\"\n"), 3, "at most"),
            ("times", learn("after = \"2h\"\nexpiry = \"1h\"\n"), 5, "no source would ever be preferred"),
            ("bits", learn("prefix4 = 4\n"), 4, "8 to 32"),
            ("bytes", learn("limit = \"1MiB/s\"\n"), 4, "counts bytes"),
            ("none", learn("entries = 0\n"), 4, "1 to"),
            ("state", learn("attack = \"maybe\"\n"), 4, "auto, on"),
            ("reason", capture("[capture.reasons]\nmalformd = 1\n"), 5, "known: blocked, banned"),
            ("one", capture("one_in = 0\n"), 4, "1 to"),
            ("snaplen", capture("snaplen = 1\n"), 4, "64 to"),
            ("size", capture("size = \"1KiB\"\n"), 4, "at least"),
            ("folder", "interfaces = [\"a\"]\n[capture]\nfile = \"..\"\n".to_owned(), 3, "name of a file"),
            (
                "payload",
                format!("interfaces = [\"a\"]\n{rule}action = \"drop\"\npayload = \"0: 17\"\n"),
                5,
                "offset 0: 17 00 03 2a",
            ),
            (
                "places",
                (0..9).fold("interfaces = [\"a\"]\n".to_owned(), |text, n| {
                    text + &format!(
                        "[[rule]]\nname = \"{n}\"\naction = \"drop\"\npayload = \"offset {n}: 17\"\n"
                    )
                }),
                34,
                "at most 8 are allowed",
            ),
            (
                "ids",
                "interfaces = [\"a\"]\n[quic]\nports = [443]\nunknown_ids = \"drop\"\n".into(),
                4,
                "needs `keys`",
            ),
            (
                "retry",
                "interfaces = [\"a\"]\n[quic]\nports = [443]\nretry = \"always\"\n".into(),
                4,
                "needs `keys`",
            ),
            (
                "rate",
                "interfaces = [\"a\"]\n[quic]\nports = [443]\nretry = \"1MiB/s\"\n".into(),
                4,
                "a rate of packets",
            ),
            (
                "keys",
                "interfaces = [\"a\"]\n[quic]\nports = [443]\nkeys = \"gone\"\n".into(),
                4,
                "gone cannot be read",
            ),
            ("open", "interfaces = [\"a\"]\n[quic]\nports = [443]\nkeys = \"list\"\n".into(), 4, "chmod"),
            ("ports", "interfaces = [\"a\"]\n[quic]\nkeys = \"list\"\n".into(), 3, "needs `ports`"),
            ("syn", "interfaces = [\"a\"]\n[tcp]\nsyn_cookies = \"always\"\n".into(), 3, "needs `ports`"),
            (
                "cookies",
                "interfaces = [\"a\"]\n[tcp]\nports = [80]\nsyn_cookies = \"yes\"\n".into(),
                4,
                "under-load, always",
            ),
            ("file", "interfaces = [\"a\"]\nblock_file = \"gone\"\n".to_owned(), 0, "cannot be read"),
        ] {
            let error = load(name, &text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn amplification_comes_behind_the_files_rules() {
        let text = "interfaces = [\"a\"]\ndrop_amplification = true\n[[rule]]\nname = \"ssdp\"\nsource_port = 1900\naction = \"pass\"\n";
        assert_eq!(load("order", text).unwrap().rules, ["ssdp", "amplification", "amplification-ntp"]);
    }
}
