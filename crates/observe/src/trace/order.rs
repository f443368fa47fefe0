//! The parameters of a trace, as they are requested.

use std::net::{IpAddr, SocketAddr};

use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_netio::trace::{Filter, ID, Options};
use serde::{Deserialize, Serialize};

/// The longest trace.
pub const MAX_SECONDS: u32 = 3600;

/// An order, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Order {
    /// The client: an address, with a port or without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// What a connection ID of the server's begins with, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// How long.
    pub seconds: u32,
    /// One request in so many, on each worker.
    pub sample: u32,
}

impl Default for Order {
    fn default() -> Self {
        Self { client: None, connection: None, seconds: 10, sample: 1 }
    }
}

impl Order {
    /// What a recording is to be started with.
    ///
    /// # Errors
    /// What is wrong with the order.
    pub fn options(&self) -> Result<Options, String> {
        if !(1..=MAX_SECONDS).contains(&self.seconds) {
            return Err(format!("seconds is {}: must be 1 to {MAX_SECONDS}", self.seconds));
        }
        if self.sample == 0 {
            return Err("sample is 0: must be at least 1".to_owned());
        }
        let client = self.client.as_deref().map(client).transpose()?;
        let connection = self.connection.as_deref().map(connection).transpose()?.unwrap_or_default();
        Ok(Options { filter: Filter { client, connection }, sample: self.sample })
    }
}

fn client(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse() {
        return Ok((address, None));
    }
    let both: Result<SocketAddr, _> = text.parse();
    both.map(|both| (both.ip(), Some(both.port()))).map_err(|_| {
        format!("client is {text:?}: must be an address, 192.0.2.1 or [2001:db8::1], or that with :PORT")
    })
}

fn connection(text: &str) -> Result<Vec<u8>, String> {
    let wrong =
        || format!("connection is {text:?}: must be 1 to {ID} bytes of a connection ID in hexadecimal");
    let id = HEX.decode(text.as_bytes()).ok();
    id.filter(|id| (1..=ID).contains(&id.len())).ok_or_else(wrong)
}
