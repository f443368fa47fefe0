//! A lab's configuration and the names of its namespaces.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::LabError;

/// The default lab name.
pub const DEFAULT_NAME: &str = "default";

/// The longest lab name: the namespace name must be a short file name.
const NAME_MAX: usize = 32;

/// The most queues of a lab's veth; the kernel allows more, but two cores cannot use them.
const QUEUES_MAX: u32 = 64;

/// One of the two namespaces of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Where the service under test runs; has the first address of each network.
    Server,
    /// Where its clients run; has the second address of each network.
    Client,
}

impl Role {
    /// Both, server first.
    pub const ALL: [Self; 2] = [Self::Server, Self::Client];

    /// `server` or `client`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    /// The other one.
    pub fn peer(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }

    /// The name of the veth end in this namespace: `server0` or `client0`.
    pub fn interface(self) -> &'static str {
        match self {
            Self::Server => "server0",
            Self::Client => "client0",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A namespace as the command line names it: `server`, `client`, or `LAB/server`, `LAB/client`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The lab.
    pub lab: String,
    /// The namespace of it.
    pub role: Role,
}

impl FromStr for Target {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let (lab, role) = text.split_once('/').unwrap_or((DEFAULT_NAME, text));
        check_name(lab)?;
        let role = Role::ALL.into_iter().find(|candidate| candidate.name() == role);
        let role = role.ok_or_else(|| {
            LabError::Config(format!(
                "`{text}` is not a namespace: use server, client, LAB/server or LAB/client"
            ))
        })?;
        Ok(Self { lab: lab.to_owned(), role })
    }
}

/// Whether a step of transmission is done by the device or before it by the kernel in software.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// The device does it.
    #[default]
    On,
    /// The kernel does it in software.
    Off,
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// A lab's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, deny_unknown_fields)]
pub struct LabConfig {
    /// Name of the lab; several of different names can be up at the same time
    #[cfg_attr(feature = "clap", arg(default_value = DEFAULT_NAME))]
    pub name: String,
    /// Receive and transmit queues of both ends of the veth
    #[cfg_attr(feature = "clap", arg(long, default_value_t = 1, value_name = "N"))]
    pub queues: u32,
    /// MTU of both ends: 1500, or 9000 for jumbo frames
    #[cfg_attr(feature = "clap", arg(long, default_value_t = 1500, value_name = "BYTES"))]
    pub mtu: u32,
    /// Adds a VLAN interface with this ID and addresses of its own on both ends
    #[cfg_attr(feature = "clap", arg(long, value_name = "ID"))]
    pub vlan: Option<u16>,
    /// Gives the server a second IPv4 and IPv6 address
    #[cfg_attr(feature = "clap", arg(long))]
    pub second_address: bool,
    /// Whether UDP GSO leaves the server unsegmented (tx-udp-segmentation), as with a NIC that segments
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t = Offload::On))]
    pub udp_segmentation: Offload,
    /// Whether the client leaves checksums to the device: on a veth, that is frames without a checksum
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t = Offload::Off))]
    pub client_checksum: Offload,
    /// Length of the server's transmit queue in packets (pfifo); 0 leaves it without one
    #[cfg_attr(feature = "clap", arg(long, default_value_t = 2000, value_name = "PACKETS"))]
    pub queue_limit: u32,
    /// Does the client's receive work in NAPI threads pinned to this core, so that the server's core
    /// does not pay for it
    #[cfg_attr(feature = "clap", arg(long, value_name = "CORE"))]
    pub client_napi_core: Option<usize>,
    /// Does the server's receive work in NAPI threads pinned to this core
    #[cfg_attr(feature = "clap", arg(long, value_name = "CORE"))]
    pub server_napi_core: Option<usize>,
    /// The server's and the client's interface: two of this machine's that are wired to each other and carry nothing
    /// else, in place of a veth. They are moved back when the lab is removed.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub devices: Option<[String; 2]>,
}

impl Default for LabConfig {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME.to_owned(),
            queues: 1,
            mtu: 1500,
            vlan: None,
            second_address: false,
            udp_segmentation: Offload::On,
            client_checksum: Offload::Off,
            // The veth ring holds 256 frames: without a queue before it, AF_XDP bursts are lost after their
            // completion (4 % of a million were).
            queue_limit: 2000,
            client_napi_core: None,
            server_napi_core: None,
            devices: None,
        }
    }
}

impl LabConfig {
    /// A lab of this name, with the defaults for the rest.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Rejects what the kernel would reject later or, worse, accept.
    pub fn check(&self) -> Result<(), LabError> {
        check_name(&self.name)?;
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return Err(LabError::Config(format!("queues = {}: must be 1 to {QUEUES_MAX}", self.queues)));
        }
        // 1280 is the least that IPv6 works with (RFC 8200, section 5), 65535 the most a veth takes.
        if !(1280..=65535).contains(&self.mtu) {
            return Err(LabError::Config(format!("mtu = {}: must be 1280 to 65535", self.mtu)));
        }
        if let Some(id) = self.vlan
            && !(1..=4094).contains(&id)
        {
            return Err(LabError::Config(format!("vlan = {id}: must be 1 to 4094")));
        }
        for device in self.devices.iter().flatten() {
            let fits = (1..=15).contains(&device.len())
                && device.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':'))
                && !device.starts_with('.');
            if !fits {
                return Err(LabError::Config(format!("`{device}` is not an interface name")));
            }
        }
        Ok(())
    }

    /// The name of a namespace of this lab, as `ip netns` shows it.
    pub fn namespace(&self, role: Role) -> String {
        namespace_name(&self.name, role)
    }

    /// The device that becomes the interface of `role`, unless that is a veth end.
    pub(crate) fn device(&self, role: Role) -> Option<&str> {
        self.devices.as_ref().map(|[server, client]| match role {
            Role::Server => server.as_str(),
            Role::Client => client.as_str(),
        })
    }

    /// The core that a namespace's NAPI threads are pinned to.
    pub(crate) fn napi_core(&self, role: Role) -> Option<usize> {
        match role {
            Role::Server => self.server_napi_core,
            Role::Client => self.client_napi_core,
        }
    }
}

/// `expressway-LAB-ROLE`.
pub(crate) fn namespace_name(lab: &str, role: Role) -> String {
    format!("expressway-{lab}-{role}")
}

/// The lab of a namespace name, if it is a lab's.
pub(crate) fn lab_of_namespace(namespace: &str) -> Option<(&str, Role)> {
    let rest = namespace.strip_prefix("expressway-")?;
    Role::ALL.into_iter().find_map(|role| {
        let lab = rest.strip_suffix(role.name())?.strip_suffix('-')?;
        check_name(lab).is_ok().then_some((lab, role))
    })
}

/// A lab name is part of namespace and file names: small letters, digits and inner hyphens.
pub(crate) fn check_name(name: &str) -> Result<(), LabError> {
    let fits = (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    if fits {
        return Ok(());
    }
    Err(LabError::Config(format!(
        "`{name}` is not a lab name: use 1 to {NAME_MAX} lower-case letters, digits and inner hyphens"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_default_to_the_default_lab() {
        let target: Target = "server".parse().unwrap();
        assert_eq!(target, Target { lab: DEFAULT_NAME.into(), role: Role::Server });
        let target: Target = "t1/client".parse().unwrap();
        assert_eq!(target, Target { lab: "t1".into(), role: Role::Client });
        for bad in ["", "host", "t1/", "/server", "T1/server", "../x/server", "a b/client"] {
            assert!(bad.parse::<Target>().unwrap_err().is_usage(), "{bad}");
        }
    }

    #[test]
    fn namespaces_name_their_lab() {
        let config = LabConfig::named("a-server");
        let namespace = config.namespace(Role::Client);
        assert_eq!(namespace, "expressway-a-server-client");
        assert_eq!(lab_of_namespace(&namespace), Some(("a-server", Role::Client)));
        for foreign in ["expressway-server", "expressway--server", "other-x-server", "expressway-x-router"] {
            assert_eq!(lab_of_namespace(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn impossible_values_are_refused() {
        let with = |change: fn(&mut LabConfig)| {
            let mut config = LabConfig::default();
            change(&mut config);
            config.check()
        };
        assert!(with(|_| ()).is_ok());
        assert!(with(|c| c.queues = 0).unwrap_err().to_string().contains("queues = 0"));
        assert!(with(|c| c.mtu = 1279).unwrap_err().to_string().contains("mtu = 1279"));
        assert!(with(|c| c.vlan = Some(4095)).unwrap_err().to_string().contains("vlan = 4095"));
        assert!(with(|c| c.devices = Some(["eth0".into(), "eth1".into()])).is_ok());
        let error = with(|c| c.devices = Some(["eth0".into(), "a b".into()])).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("`a b` is not an interface name"));
        assert!(with(|c| c.name = "x".repeat(33)).unwrap_err().is_usage());
    }
}
