//! Identities by name.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::TlsError;
use crate::identity::Identity;

/// Certificates of one server at most.
pub const MAX_CERTIFICATES: usize = 10_000;

/// Identities of one name at most: one a kind of key is of use.
const PER_NAME: usize = 4;

/// The longest name that is looked up (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 255;

/// Identities by the names in their certificates, at least one.
#[derive(Debug)]
pub struct Certificates {
    all: Vec<Arc<Identity>>,
    default: Vec<Arc<Identity>>,
    exact: HashMap<Box<str>, Vec<Arc<Identity>>>,
    /// By what follows `*.`.
    wildcard: HashMap<Box<str>, Vec<Arc<Identity>>>,
}

impl Certificates {
    /// The first is for clients that name no server, and for names that no certificate has, together with others for the
    /// first's first name.
    ///
    /// # Errors
    /// Without a certificate there is nothing to serve with ([`TlsError::TooMany`] has the upper bound).
    pub fn new(identities: Vec<Arc<Identity>>) -> Result<Self, TlsError> {
        if identities.len() > MAX_CERTIFICATES {
            return Err(TlsError::TooMany);
        }
        let (mut exact, mut wildcard) = (HashMap::new(), HashMap::new());
        for identity in &identities {
            for name in identity.names() {
                match name.strip_prefix("*.") {
                    Some(parent) => insert(&mut wildcard, parent, identity),
                    None => insert(&mut exact, name, identity),
                }
            }
        }
        let mut certificates = Self { all: identities, default: Vec::new(), exact, wildcard };
        if let Some(first) = certificates.all.first() {
            let found = first.names().first().and_then(|name| match name.strip_prefix("*.") {
                Some(parent) => certificates.wildcard.get(parent),
                None => certificates.exact.get(name.as_str()),
            });
            certificates.default = match found {
                Some(found) if found.iter().any(|one| Arc::ptr_eq(one, first)) => found.clone(),
                _ => vec![first.clone()],
            };
        }
        Ok(certificates)
    }

    /// Those for a server name as a client sent it: exactly that name, or a wildcard for its last labels but one (RFC
    /// 9525, section 6.3). In the order to be tried: RSA last.
    pub fn find(&self, name: &[u8]) -> Option<&[Arc<Identity>]> {
        let mut buffer = [0; MAX_NAME];
        let lower = buffer.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        let name = std::str::from_utf8(lower).ok()?;
        if let Some(found) = self.exact.get(name) {
            return Some(found);
        }
        let (label, parent) = name.split_once('.')?;
        if label.is_empty() { None } else { self.wildcard.get(parent).map(Vec::as_slice) }
    }

    /// Those for everybody else.
    pub fn default_identities(&self) -> &[Arc<Identity>] {
        &self.default
    }

    /// All, in the order given.
    pub fn all(&self) -> &[Arc<Identity>] {
        &self.all
    }
}

fn insert(names: &mut HashMap<Box<str>, Vec<Arc<Identity>>>, name: &str, identity: &Arc<Identity>) {
    let found = names.entry(name.into()).or_default();
    if let Some(other) = found.iter().find(|other| other.key_kind() == identity.key_kind()) {
        if !Arc::ptr_eq(other, identity) {
            tracing::warn!(
                name,
                used = other.label(),
                ignored = identity.label(),
                "two certificates for a name and a kind of key: the first is served"
            );
        }
        return;
    }
    if found.len() < PER_NAME {
        let place =
            found.iter().position(|other| other.key_kind() > identity.key_kind()).unwrap_or(found.len());
        found.insert(place, identity.clone());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Key, identity, identity_of};

    fn certificates(names: &[&[&str]]) -> Certificates {
        Certificates::new(names.iter().map(|names| Arc::new(identity(names))).collect()).unwrap()
    }

    fn found(certificates: &Certificates, name: &str) -> Option<String> {
        certificates.find(name.as_bytes()).map(|found| found[0].label().to_owned())
    }

    #[test]
    fn exact_names_come_before_wildcards_of_one_label() {
        let certificates =
            certificates(&[&["first.example"], &["*.b.example", "b.example"], &["x.b.example"]]);
        let expected = [
            ("first.example", Some("first.example")),
            ("FIRST.Example", Some("first.example")),
            ("b.example", Some("*.b.example")),
            ("y.b.example", Some("*.b.example")),
            ("x.b.example", Some("x.b.example")),
            ("z.y.b.example", None),
            (".b.example", None),
            ("other.example", None),
            ("*.b.example", Some("*.b.example")),
            ("", None),
        ];
        for (name, label) in expected {
            assert_eq!(found(&certificates, name).as_deref(), label, "{name}");
        }
        assert!(certificates.find(&[b'a'; 300]).is_none());
        assert!(certificates.find(b"\xff.b.example").is_none());
        assert_eq!(certificates.default_identities()[0].label(), "first.example");
    }

    #[test]
    fn of_one_name_rsa_is_tried_last_and_a_second_of_a_kind_not_at_all() {
        let (rsa, ecdsa) = (identity_of(&["a.example"], Key::Rsa), identity_of(&["a.example"], Key::Ecdsa));
        let another = identity_of(&["a.example", "b.example"], Key::Ecdsa);
        let (rsa, ecdsa, another) = (Arc::new(rsa), Arc::new(ecdsa), Arc::new(another));
        let certificates = Certificates::new(vec![rsa.clone(), ecdsa.clone(), another.clone()]).unwrap();
        let same = |found: &[Arc<Identity>], expected: &[&Arc<Identity>]| {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(one, other)| Arc::ptr_eq(one, other))
        };
        assert!(same(certificates.find(b"a.example").unwrap(), &[&ecdsa, &rsa]));
        assert!(same(certificates.find(b"b.example").unwrap(), &[&another]));
        assert!(same(certificates.default_identities(), &[&ecdsa, &rsa]));
    }

    proptest! {
        /// Whatever is found has a name that covers what was asked for, as BoringSSL's own comparison says.
        #[test]
        fn never_a_certificate_for_another_name(
            names in prop::collection::vec(prop::collection::vec("(\\*\\.)?[ab]\\.[ab](\\.[ab])?", 1..3), 1..4),
            asked in "[abAB]\\.[abAB](\\.[abAB])?(\\.[ab])?",
        ) {
            let names: Vec<Vec<&str>> = names.iter().map(|some| some.iter().map(String::as_str).collect()).collect();
            let names: Vec<&[&str]> = names.iter().map(Vec::as_slice).collect();
            let certificates = certificates(&names);
            let right = |identity: &Arc<Identity>| identity.leaf().check_host(&asked).unwrap();
            match certificates.find(asked.as_bytes()) {
                Some(found) => prop_assert!(!found.is_empty() && found.iter().all(right)),
                None => prop_assert!(!certificates.all().iter().any(right)),
            }
        }
    }
}
