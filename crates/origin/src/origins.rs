//! All origins of a configuration, across reloads.

use std::sync::{Mutex, PoisonError};

use crate::{Control, Origin, OriginOptions, OriginReport};

/// An origin that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("origin `{name}`: {problem}")]
pub struct OriginError {
    /// Its name.
    pub name: String,
    /// What is wrong.
    pub problem: String,
}

/// The origins in use. One a process.
pub struct Origins {
    control: Control,
    current: Mutex<Vec<Origin>>,
}

impl Origins {
    /// None yet; they will run on `control`.
    pub fn new(control: Control) -> Self {
        Self { control, current: Mutex::default() }
    }

    /// Where they run, and others may.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The origins of `options`, in their order. Those in use that are configured the same are kept, with their
    /// connections and what is known of their servers; nothing of what is in use changes.
    pub fn build(&self, options: Vec<OriginOptions>) -> Result<Vec<Origin>, OriginError> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let build = |options: OriginOptions| {
            // Files of certificates are read again: they may be others under the same names.
            let same = current.iter().find(|origin| *origin.options() == options && !has_files(&options));
            if let Some(same) = same {
                return Ok(same.clone());
            }
            let name = options.name.clone();
            Origin::new(options, self.control.handle()).map_err(|problem| OriginError { name, problem })
        };
        options.into_iter().map(build).collect()
    }

    /// From now on these are in use, and looked after.
    pub fn adopt(&self, origins: Vec<Origin>) {
        origins.iter().for_each(Origin::watch);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = origins;
    }

    /// Counters of those in use.
    pub fn report(&self) -> Vec<OriginReport> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        current.iter().map(Origin::report).collect()
    }
}

fn has_files(options: &OriginOptions) -> bool {
    options.tls.ca.is_some() || options.tls.identity.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoint;

    #[test]
    fn what_is_configured_the_same_stays() {
        let origins = Origins::new(Control::start(1).unwrap());
        let option = |name: &str, port| {
            OriginOptions::new(name, Endpoint::parse(&format!("http://127.0.0.1:{port}")).unwrap())
        };
        let first = origins.build(vec![option("a", 1), option("b", 2)]).unwrap();
        origins.adopt(first.clone());
        let second = origins.build(vec![option("b", 2), option("a", 3)]).unwrap();
        assert!(std::sync::Arc::ptr_eq(&second[0].0, &first[1].0));
        assert!(!std::sync::Arc::ptr_eq(&second[1].0, &first[0].0));
        assert_eq!(origins.report().len(), 2);
        let none = OriginOptions { servers: Vec::new(), ..option("c", 1) };
        assert_eq!(origins.build(vec![none]).err().unwrap().to_string(), "origin `c`: give 1 to 64 servers");
    }
}
