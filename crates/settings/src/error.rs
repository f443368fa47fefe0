//! Configuration errors, on one line: file, line, key, the problem, and the remedy.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

/// One thing wrong with a configuration file. Its display is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as it was named.
    pub file: PathBuf,
    /// Line in the file, from 1; 0 when the file as a whole is meant.
    pub line: usize,
    /// Dotted path of the key, for instance `site.0.root`; empty when no key is meant.
    pub key: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.problem)
    }
}

/// Finds lines and keys for byte offsets of one file.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// The file as it was named, for messages.
    pub file: PathBuf,
    /// Its text.
    pub text: String,
}

impl SourceFile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is not UTF-8.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| Self::whole(file, format!("cannot be read: {error}")))?;
        Ok(Self { file: file.to_owned(), text })
    }

    /// Reads the text as TOML into `T`, which denies unknown fields.
    ///
    /// # Errors
    /// With file, line and key; for an unknown key with the nearest known one.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|error| self.parse_error(&error))
    }

    /// An error about the file as a whole.
    pub fn whole(file: &Path, problem: impl Into<String>) -> ConfigError {
        ConfigError { file: file.to_owned(), line: 0, key: String::new(), problem: problem.into() }
    }

    /// An error at a place of the file; the key is looked up from the place.
    pub fn at(&self, span: Range<usize>, problem: impl Into<String>) -> ConfigError {
        ConfigError {
            file: self.file.clone(),
            line: self.line(span.start),
            key: self.key(span.start),
            problem: problem.into(),
        }
    }

    /// Turns the parser's error into ours, with the nearest known key where a key is unknown.
    fn parse_error(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        match unknown_field(&message) {
            Some((unknown, known)) => {
                let mut found = self.at(span, unknown_key(unknown, &known));
                if found.key.rsplit('.').next() != Some(unknown) {
                    found.key = if found.key.is_empty() {
                        unknown.into()
                    } else {
                        format!("{}.{unknown}", found.key)
                    };
                }
                found
            }
            None => self.at(span, message),
        }
    }

    fn line(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        self.text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn key(&self, offset: usize) -> String {
        let mut path = Vec::new();
        let (table, _) = DeTable::parse_recoverable(&self.text);
        descend_table(table.get_ref(), offset, &mut path);
        path.join(".")
    }
}

fn descend_table(table: &DeTable<'_>, offset: usize, path: &mut Vec<String>) {
    for (key, value) in table {
        if key.span().contains(&offset) {
            path.push(key.get_ref().to_string());
            return;
        }
        let span = value.span();
        let before = path.len();
        path.push(key.get_ref().to_string());
        descend_value(value.get_ref(), offset, path);
        if span.contains(&offset) || path.len() > before + 1 {
            return;
        }
        path.truncate(before);
    }
}

/// Follows the offset into tables and arrays of tables, whose own spans may cover their header only.
fn descend_value(value: &DeValue<'_>, offset: usize, path: &mut Vec<String>) {
    match value {
        DeValue::Table(table) => descend_table(table, offset, path),
        DeValue::Array(array) => {
            for (index, item) in array.iter().enumerate() {
                let before = path.len();
                path.push(index.to_string());
                descend_value(item.get_ref(), offset, path);
                if path.len() > before + 1 || item.span().contains(&offset) {
                    return;
                }
                path.truncate(before);
            }
        }
        _ => {}
    }
}

/// Takes apart serde's ``unknown field `x`, expected one of `a`, `b` ``.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field `")?;
    let (unknown, rest) = rest.split_once('`')?;
    Some((unknown, rest.split('`').skip(1).step_by(2).collect()))
}

fn unknown_key(unknown: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(unknown, candidate), *candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= candidate.len().max(unknown.len()).div_ceil(2));
    match nearest {
        Some((_, candidate)) => format!("unknown key; did you mean `{candidate}`?"),
        None => format!("unknown key; valid keys here: {}", known.join(", ")),
    }
}
