//! Which protocol a session speaks (draft-ietf-webtrans-http3-15, section 3.3).

use http::HeaderMap;
use sfv::{ListEntry, Parser};

/// What clients offer, a list of strings.
const AVAILABLE: &str = "wt-available-protocols";
/// What is spoken, a string.
pub(super) const CHOSEN: &str = "wt-protocol";

/// What comes of what a client offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice<'a> {
    /// The first of its list that is spoken here.
    Spoken(&'a str),
    /// It offers nothing, or nothing that can be read (which is to be passed over): it knows what is spoken here.
    Silent,
    /// Nothing of its list is spoken here.
    None,
}

/// What is spoken of `known`.
pub(super) fn choose<'a>(headers: &HeaderMap, known: &[&'a str]) -> Choice<'a> {
    let values: Vec<_> = headers.get_all(AVAILABLE).iter().map(|value| value.as_bytes()).collect();
    let list = values.join(&b", "[..]);
    let Ok(list) = Parser::new(&list).parse::<sfv::List>() else { return Choice::Silent };
    if list.is_empty() {
        return Choice::Silent;
    }
    let mut offered = Vec::with_capacity(list.len());
    for entry in &list {
        let ListEntry::Item(item) = entry else { return Choice::Silent };
        let Some(text) = item.bare_item.as_string() else { return Choice::Silent };
        offered.push(text.as_str());
    }
    let spoken = |offer: &&str| known.iter().find(|name| *name == offer).copied();
    offered.iter().find_map(spoken).map_or(Choice::None, Choice::Spoken)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn chosen(values: &[&str]) -> Choice<'static> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AVAILABLE, HeaderValue::from_str(value).unwrap());
        }
        choose(&headers, &["b", "a"])
    }

    #[test]
    fn the_first_that_the_client_names_is_spoken() {
        assert_eq!(chosen(&[r#""x", "a", "b""#]), Choice::Spoken("a"));
        assert_eq!(
            chosen(&[r#""x""#, r#""b";q=1"#]),
            Choice::Spoken("b"),
            "a list in parts, with a parameter"
        );
        assert_eq!(chosen(&[r#""x""#]), Choice::None);
        for silent in [&[][..], &[""], &["a"], &[r#"("a")"#], &[r#""a"#], &["\"a\",,"]] {
            assert_eq!(chosen(silent), Choice::Silent, "{silent:?}");
        }
    }
}
