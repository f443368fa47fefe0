//! `[otlp]`: metrics for an OpenTelemetry collector.

use std::net::SocketAddr;
use std::time::Duration;

use expressway_settings::Span;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::Problem;

/// What OTLP/HTTP puts behind the endpoint for metrics ("OTLP/HTTP Request").
const METRICS: &str = "/v1/metrics";

/// For a push, if nothing else is said.
const TIMEOUT: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Otlp {
    /// The collector: `http://ADDR:PORT`, perhaps with a path.
    pub(crate) endpoint: Spanned<String>,
    /// Time between two pushes.
    #[serde(default = "half_a_minute")]
    pub(crate) interval: Spanned<Span>,
    /// For all of a push; absent: [`TIMEOUT`], or the interval if that is less.
    pub(crate) timeout: Option<Spanned<Span>>,
}

impl Otlp {
    /// Where metrics go: an address, and a path.
    pub(crate) fn target(&self) -> Result<(SocketAddr, String), Problem> {
        let problem = || {
            let problem = "give http://ADDRESS:PORT, such as \"http://127.0.0.1:4318\"; for names and https let a collector on \
                           this machine pass it on";
            (self.endpoint.span(), problem.to_owned())
        };
        let rest = self.endpoint.get_ref().strip_prefix("http://").ok_or_else(problem)?;
        let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let address = address.parse().map_err(|_| problem())?;
        let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#\"<>\\^`{|}".contains(&byte));
        if !is_path {
            return Err(problem());
        }
        Ok((address, format!("{}{METRICS}", path.trim_end_matches('/'))))
    }

    /// For all of a push.
    pub(crate) fn timeout(&self) -> Duration {
        let given = self.timeout.as_ref().map(|timeout| timeout.get_ref().0);
        given.unwrap_or_else(|| TIMEOUT.min(self.interval.get_ref().0))
    }

    pub(crate) fn check(&self) -> Result<(), Problem> {
        self.target()?;
        let interval = self.interval.get_ref().0;
        if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&interval) {
            return Err((self.interval.span(), "give a time between \"1s\" and \"1h\"".to_owned()));
        }
        if let Some(timeout) = &self.timeout
            && !(Duration::from_millis(100)..=interval).contains(&timeout.get_ref().0)
        {
            let problem = "give a time from \"100ms\" to the interval".to_owned();
            return Err((timeout.span(), problem));
        }
        Ok(())
    }
}

fn half_a_minute() -> Spanned<Span> {
    Spanned::new(0..0, Span(Duration::from_secs(30)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn otlp(text: &str) -> Result<(SocketAddr, String), String> {
        let otlp: Otlp = toml::from_str(text).map_err(|error| error.to_string())?;
        otlp.check().map_err(|(_, problem)| problem)?;
        otlp.target().map_err(|(_, problem)| problem)
    }

    #[test]
    fn an_endpoint_is_an_address_and_a_path() {
        for (endpoint, address, path) in [
            ("http://127.0.0.1:4318", "127.0.0.1:4318", "/v1/metrics"),
            ("http://127.0.0.1:4318/", "127.0.0.1:4318", "/v1/metrics"),
            ("http://[::1]:80/a/b/", "[::1]:80", "/a/b/v1/metrics"),
        ] {
            let target = otlp(&format!("endpoint = \"{endpoint}\""));
            assert_eq!(target, Ok((address.parse().unwrap(), path.to_owned())));
        }
        for endpoint in [
            "",
            "127.0.0.1:4318",
            "https://127.0.0.1:1",
            "http://a.example:1",
            "http://127.0.0.1",
            "http://[::1]:1/a b",
        ] {
            assert!(
                otlp(&format!("endpoint = \"{endpoint}\"")).unwrap_err().contains("give http://"),
                "{endpoint}"
            );
        }
        let with = |more: &str| otlp(&format!("endpoint = \"http://127.0.0.1:4318\"\n{more}")).unwrap_err();
        assert!(with("interval = \"0s\"").contains("between \"1s\""));
        assert!(with("interval = \"2s\"\ntimeout = \"3s\"").contains("to the interval"));
        for (more, seconds) in [("", 5), ("interval = \"1s\"", 1), ("timeout = \"20s\"", 20)] {
            let otlp: Otlp =
                toml::from_str(&format!("endpoint = \"http://127.0.0.1:4318\"\n{more}")).unwrap();
            assert_eq!((otlp.check(), otlp.timeout()), (Ok(()), Duration::from_secs(seconds)), "{more}");
        }
        assert!(with("x = 1").contains("unknown field"));
    }
}
