//! `expressway serve DIR`: a directory on this machine alone, without a configuration file.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use expressway_acme::development::{self, Files};

use super::config::Config;
use crate::fail::Failure;

/// What is listened at unless the command line says otherwise.
const PORT: u16 = 8443;

/// The configuration to serve `directory` with, which `listen` may change the addresses of.
pub(super) fn config(directory: Option<&Path>, listen: &[SocketAddr]) -> Result<Config, Failure> {
    let directory = directory.ok_or_else(|| Failure::usage("give a directory or --config FILE"))?;
    let directory = std::path::absolute(directory)
        .map_err(|error| Failure::usage(format!("{}: {error}", directory.display())))?;
    let found = std::fs::metadata(&directory)
        .map_err(|error| Failure::usage(format!("{}: {error}", directory.display())))?;
    if !found.is_dir() {
        return Err(Failure::usage(format!("{} is not a directory", directory.display())));
    }
    let certificate = development::localhost().map_err(Failure::run_time)?;
    let text = text(&directory, listen, &certificate)?;
    Config::parse(Path::new("(no configuration file)"), text).map_err(Failure::usage)
}

fn text(directory: &Path, listen: &[SocketAddr], certificate: &Files) -> Result<String, Failure> {
    let listen = if listen.is_empty() { local() } else { listen.to_vec() };
    let listen: Vec<String> = listen.iter().map(SocketAddr::to_string).collect();
    let text = |path: &Path| match path.to_str() {
        Some(text) => Ok(toml::Value::from(text)),
        None => Err(Failure::usage(format!("{}: the path is not text", path.display()))),
    };
    Ok(format!(
        "[server]\nlisten = {}\npin = false\n[io]\nmode = \"udp\"\n\
         [tls]\ncertificate = {}\nprivate_key = {}\n[[site]]\nhosts = [\"localhost\"]\nroot = {}\n",
        toml::Value::from(listen),
        text(&certificate.certificate)?,
        text(&certificate.private_key)?,
        text(directory)?,
    ))
}

/// The addresses of `localhost`, as far as this machine has them.
fn local() -> Vec<SocketAddr> {
    let mut local = vec![SocketAddr::from(([127, 0, 0, 1], PORT))];
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        local.push(SocketAddr::from((Ipv6Addr::LOCALHOST, PORT)));
    }
    local
}

/// Says where it is served, and what clients have to trust.
pub(super) fn say(directory: &Path, config: &Config) {
    let port = config.listen().first().map_or(PORT, SocketAddr::port);
    let ca = development::localhost().map(|files| files.ca.display().to_string()).unwrap_or_default();
    tracing::info!(
        "{} is at https://localhost:{port}/ by HTTP/3, HTTP/2 and HTTP/1.1; clients have to trust {ca}: curl --cacert {ca} \
         https://localhost:{port}/",
        directory.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_becomes_a_configuration_whatever_it_is_called() {
        let certificate =
            Files { ca: "/s/ca.pem".into(), certificate: "/s/c.pem".into(), private_key: "/s/k.pem".into() };
        let listen = ["127.0.0.1:9443".parse().unwrap(), "[::1]:9443".parse().unwrap()];
        for name in ["/srv/video", "/srv/a \"quoted\" \\ name", "/srv/\u{e4}\nb"] {
            let text = text(Path::new(name), &listen, &certificate).unwrap();
            let config = Config::parse(Path::new("x"), text).unwrap();
            assert_eq!(config.listen(), listen);
            assert_eq!(config.sites[0].root.as_ref().unwrap().get_ref(), Path::new(name));
        }
    }

    #[test]
    fn without_addresses_it_is_this_machine_alone() {
        assert!(local().iter().all(|address| address.ip().is_loopback() && address.port() == PORT));
    }
}
