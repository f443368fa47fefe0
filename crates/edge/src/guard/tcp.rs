//! `[tcp]`: listeners of this host whose SYNs are answered with SYN cookies.

use std::path::Path;

use expressway_settings::{ConfigError, SourceFile, named};
use expressway_xbpf::GuardSyn;
use serde::Deserialize;
use toml::Spanned;

/// Where the kernel says whether it makes SYN cookies: 0 never, 1 when a listener's queue is full, 2 always.
const SYSCTL: &str = "/proc/sys/net/ipv4/tcp_syncookies";

/// When SYNs are answered with cookies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// When the listener's queue is full.
    #[default]
    UnderLoad,
    /// Always.
    Always,
}

impl SynCookies {
    const NAMES: [(&'static str, Self); 2] = [("under-load", Self::UnderLoad), ("always", Self::Always)];
}

named!(SynCookies);

/// `[tcp]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TcpSection {
    /// The listeners' ports.
    #[serde(default)]
    ports: Vec<u16>,
    /// Nothing is answered if not given.
    syn_cookies: Option<Spanned<SynCookies>>,
}

impl TcpSection {
    /// As the program has it.
    pub(super) fn syn(&self, source: &SourceFile) -> Result<GuardSyn, ConfigError> {
        let Some(cookies) = &self.syn_cookies else { return Ok(GuardSyn::default()) };
        if self.ports.is_empty() {
            return Err(source.at(cookies.span(), "needs `ports`: those of the listeners"));
        }
        let check_acks = *cookies.get_ref() == SynCookies::Always;
        Ok(GuardSyn { ports: self.ports.clone(), check_acks })
    }
}

/// What the kernel has to be told first; `None` if nothing. A kernel that makes no cookies is given none of the ports.
pub(super) fn check(syn: &mut GuardSyn) -> Option<String> {
    if syn.ports.is_empty() {
        return None;
    }
    let needed = if syn.check_acks { 2 } else { 1 };
    match std::fs::read_to_string(Path::new(SYSCTL)).ok().and_then(|text| text.trim().parse::<u8>().ok()) {
        None => {
            tracing::warn!(
                "[tcp] syn_cookies: not supported by this kernel (CONFIG_SYN_COOKIES); SYNs go to the stack as usual"
            );
            syn.ports.clear();
            None
        }
        Some(set) if set < needed => Some(format!(
            "[tcp] syn_cookies: net.ipv4.tcp_syncookies is {set}, so listeners would reject the cookies: sysctl -w \
             net.ipv4.tcp_syncookies={needed}"
        )),
        Some(_) => None,
    }
}
