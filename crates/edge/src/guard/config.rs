//! The filter's file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use expressway_settings::{ConfigError, SourceFile, named};
use expressway_xbpf::{Existing, GuardOptions, GuardPrefix, GuardSet, Keep};
use serde::Deserialize;
use toml::Spanned;

use super::rule::{Action, Range, Rule};
use super::{classifier, list};
use crate::interfaces::{Manner, Mode};

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

/// Servers of QUIC behind the filter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quic {
    /// Their ports.
    pub ports: Vec<u16>,
}

/// `[admin]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Admin {
    listen: SocketAddr,
}

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
    quic: Quic,
    #[serde(default = "table")]
    buckets: u32,
    #[serde(default = "table")]
    bans: u32,
    #[serde(default)]
    rule: Vec<Spanned<Rule>>,
    admin: Option<Admin>,
}

/// The filter's file, with its lists, ready to be loaded.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file's text.
    pub text: String,
    /// Interfaces that the program is on.
    pub interfaces: Vec<String>,
    /// How it is there.
    pub manner: Manner,
    /// What it decides by.
    pub options: GuardOptions,
    /// The names of its rules.
    pub rules: Vec<String>,
    /// Where statistics are served.
    pub admin: Option<SocketAddr>,
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
            let problem = "excludes `pin`: a dispatcher's programs end with their process";
            return Err(source.at(chain.span(), problem));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let lists = |entries: &[Spanned<String>],
                     named: &Option<PathBuf>|
         -> Result<Vec<GuardPrefix>, ConfigError> {
            let mut found = match named {
                Some(name) => list::read(&folder.join(name))?,
                None => Vec::new(),
            };
            for entry in entries {
                found
                    .push(list::prefix(entry.get_ref()).map_err(|problem| source.at(entry.span(), problem))?);
            }
            found.sort_unstable();
            found.dedup();
            Ok(found)
        };
        let (allow, block) = (lists(&file.allow, &file.allow_file)?, lists(&file.block, &file.block_file)?);
        let rules = rules(&source, &file)?;
        let options = GuardOptions {
            dry_run: file.dry_run,
            drop_malformed: file.drop_malformed,
            drop_fragments: file.fragments == Fragments::Drop,
            drop_default: file.default == Action::Drop,
            quic_ports: file.quic.ports.clone(),
            allow,
            block,
            classifier: classifier::compile(&rules),
            buckets: file.buckets,
            bans: file.bans,
        };
        Ok(Self {
            interfaces: interfaces.clone(),
            manner: Manner {
                mode: file.mode,
                existing: if file.replace { Existing::Replace } else { Existing::Refuse },
                keep: if file.pin { Keep::Pinned } else { Keep::Process },
                chain: chain.is_some(),
            },
            options,
            rules: rules.into_iter().map(|(rule, _)| rule.name).collect(),
            admin: file.admin.map(|admin| admin.listen),
            text: source.text,
        })
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
            ("pin", "interfaces = [\"a\"]\npin = true\nchain = true\n".to_owned(), 3, "excludes"),
            (
                "twice",
                format!("interfaces = [\"a\"]\n{rule}action = \"drop\"\n{rule}action = \"drop\"\n"),
                5,
                "another",
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
