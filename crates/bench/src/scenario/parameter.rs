//! Parameters of a kind, each of which a scenario may fix, sweep, or give to contestants.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use expressway_settings::Size;
use serde::{Deserialize, Serialize};

/// One value of a parameter, or of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A count, or a size in bytes.
    Count(u64),
    /// Any other number.
    Number(f64),
    /// A choice or a name.
    Text(Cow<'static, str>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Value {
    /// As a number, where it is one: curves are drawn over it.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Count(count) => Some(*count as f64),
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }
}

/// A text that a kind's table can hold.
pub(crate) const fn text(text: &'static str) -> Value {
    Value::Text(Cow::Borrowed(text))
}

/// What values a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    /// A whole number, from the first to the last.
    Count(u64, u64),
    /// Bytes, from the first to the last: `"64KiB"` or a number.
    Bytes(u64, u64),
    /// A number of at least this.
    Number(f64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text of letters, digits, blanks, `.`, `-` and `_`.
    Name,
}

impl Form {
    /// Takes a value as it stands in a file.
    pub(crate) fn take(self, value: &toml::Value) -> Result<Value, String> {
        match (self, value) {
            (Self::Count(least, most), toml::Value::Integer(number)) => {
                let count = u64::try_from(*number).ok().filter(|count| (least..=most).contains(count));
                count.map(Value::Count).ok_or_else(|| format!("{number} is not from {least} to {most}"))
            }
            (Self::Bytes(least, most), value) => {
                let bytes = match value {
                    toml::Value::Integer(number) => u64::try_from(*number).map_err(|e| e.to_string())?,
                    toml::Value::String(text) => text.parse::<Size>()?.0,
                    _ => return Err(self.expected()),
                };
                let fits = (least..=most).contains(&bytes);
                if fits {
                    Ok(Value::Count(bytes))
                } else {
                    Err(format!("{bytes} B is not from {least} to {most}"))
                }
            }
            (Self::Number(least), toml::Value::Integer(number)) => Self::number(least, *number as f64),
            (Self::Number(least), toml::Value::Float(number)) => Self::number(least, *number),
            (Self::Choice(words), toml::Value::String(word)) if words.contains(&word.as_str()) => {
                Ok(Value::Text(word.clone().into()))
            }
            (Self::Name, toml::Value::String(name)) if is_name(name) => Ok(Value::Text(name.clone().into())),
            _ => Err(self.expected()),
        }
    }

    /// Takes a value as it is typed on a command line.
    pub(crate) fn parse(self, typed: &str) -> Result<Value, String> {
        let value = match self {
            Self::Count(..) => typed.parse().map(toml::Value::Integer).ok(),
            Self::Number(_) => typed.parse().map(toml::Value::Float).ok(),
            Self::Bytes(..) | Self::Choice(_) | Self::Name => Some(toml::Value::String(typed.to_owned())),
        };
        value.ok_or_else(|| self.expected()).and_then(|value| self.take(&value))
    }

    fn number(least: f64, number: f64) -> Result<Value, String> {
        let fits = number.is_finite() && number >= least;
        if fits {
            Ok(Value::Number(number))
        } else {
            Err(format!("{number} is not a number of at least {least}"))
        }
    }

    fn expected(self) -> String {
        match self {
            Self::Count(least, most) => format!("expected a whole number from {least} to {most}"),
            Self::Bytes(..) => "expected a size, such as \"64KiB\" or a number of bytes".into(),
            Self::Number(least) => format!("expected a number of at least {least}"),
            Self::Choice(words) => format!("expected one of \"{}\"", words.join("\", \"")),
            Self::Name => "expected a name of letters, digits, blanks, `.`, `-` and `_`".into(),
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ' ' | '.' | '-' | '_'))
}

/// A parameter of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Its key in scenario files.
    pub(crate) key: &'static str,
    /// What it takes.
    pub(crate) form: Form,
    /// Its value where a scenario says nothing.
    pub(crate) default: Option<Value>,
    /// It has to be given.
    pub(crate) required: bool,
}

impl Parameter {
    /// One that a scenario may leave out.
    pub(crate) const fn new(key: &'static str, form: Form, default: Value) -> Self {
        Self { key, form, default: Some(default), required: false }
    }

    /// One that a scenario has to give.
    pub(crate) const fn required(key: &'static str, form: Form) -> Self {
        Self { key, form, default: None, required: true }
    }

    /// One that may be left out, and then has no value.
    pub(crate) const fn optional(key: &'static str, form: Form) -> Self {
        Self { key, form, default: None, required: false }
    }
}

/// All parameters of one run: those that a kind declares, no others, and none missing that is not optional.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case(pub(crate) BTreeMap<String, Value>);

impl Case {
    /// With other values of some parameters.
    pub(crate) fn with<const N: usize>(&self, values: [(&str, Value); N]) -> Self {
        let mut all = self.0.clone();
        all.extend(values.map(|(key, value)| (key.to_owned(), value)));
        Self(all)
    }

    /// Without a parameter that may be left out.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.0.remove(key);
        self
    }

    /// A count or size.
    pub(crate) fn count(&self, key: &str) -> u64 {
        match self.value(key) {
            Value::Count(count) => *count,
            other => unreachable!("parameter {key} is {other:?}, not a count"),
        }
    }

    /// A number.
    pub(crate) fn number(&self, key: &str) -> f64 {
        self.value(key).as_number().unwrap_or_else(|| unreachable!("parameter {key} is not a number"))
    }

    /// A number that may be left out.
    pub(crate) fn given(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(Value::as_number)
    }

    /// A choice or name.
    pub(crate) fn text(&self, key: &str) -> &str {
        match self.value(key) {
            Value::Text(text) => text,
            other => unreachable!("parameter {key} is {other:?}, not a string"),
        }
    }

    fn value(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or_else(|| unreachable!("the kind does not declare its parameter {key}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_take_what_they_say_and_name_the_rest() {
        let integer = toml::Value::Integer;
        assert_eq!(Form::Count(1, 8).take(&integer(8)), Ok(Value::Count(8)));
        assert_eq!(Form::Count(1, 8).take(&integer(-1)).unwrap_err(), "-1 is not from 1 to 8");
        assert_eq!(
            Form::Bytes(0, 1 << 30).take(&toml::Value::String("1MiB".into())),
            Ok(Value::Count(1 << 20))
        );
        assert!(Form::Bytes(0, 10).take(&toml::Value::String("1KiB".into())).unwrap_err().contains("1024 B"));
        assert_eq!(Form::Number(0.0).take(&integer(2)), Ok(Value::Number(2.0)));
        assert!(Form::Number(0.0).take(&toml::Value::Float(f64::NAN)).is_err());
        assert!(
            Form::Choice(&["on", "off"])
                .take(&toml::Value::Boolean(true))
                .unwrap_err()
                .contains("\"on\", \"off\"")
        );
        assert!(Form::Name.take(&toml::Value::String("a;b".into())).is_err());
        assert_eq!(Form::Bytes(0, 1 << 30).parse("64KiB"), Ok(Value::Count(65_536)));
        assert!(Form::Count(1, 8).parse("many").unwrap_err().contains("from 1 to 8"));
    }
}
