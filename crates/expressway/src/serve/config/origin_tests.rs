//! What `[[origin]]` accepts, and what it says about what it does not.

use std::path::Path;
use std::time::Duration;

use super::super::Config;

const GOOD: &str = r#"
[server]
listen = ["192.0.2.1:443"]
[tls]
certificate = "cert.pem"
private_key = "key.pem"
[[site]]
hosts = ["edge.example"]
root = "video"
"#;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("/srv/edge.toml"), text.into()).map_err(|error| error.to_string())
}

const ORIGIN: &str = "[[origin]]\nname = \"app\"\nservers = [\"http://a:1\", \"http://b:1\"]\n";

#[test]
fn an_origin_becomes_what_its_keys_say() {
    let config = parse(&format!(
        "{}{ORIGIN}weights = [2, 1]\nbalance = \"hash\"\nretries = 1\nresponse_timeout = \"3s\"\nvia = \"\"\n\
         trust = [\"10.0.0.0/8\"]\nca = \"ca.pem\"\nverify = false\n[origin.health]\npath = \"/ok\"\n\
         status = [\"204\", \"300-399\"]\n",
        GOOD.replace("root = \"video\"", "origin = \"app\"")
    ))
    .unwrap();
    let origins = config.origins().unwrap();
    let app = &origins[0];
    assert_eq!((origins.len(), app.name.as_str(), app.retries), (1, "app", 1));
    assert_eq!(app.servers.iter().map(|server| server.weight).collect::<Vec<_>>(), [2, 1]);
    assert_eq!((app.via.as_ref(), app.tls.verify, app.trust.len()), (None, false, 1));
    assert_eq!(app.tls.ca.as_deref(), Some(Path::new("/srv/ca.pem")));
    assert_eq!(app.health.as_ref().unwrap().status, [(204, 204), (300, 399)]);
    assert_eq!(app.timeouts.response, Duration::from_secs(3));
    let effective = config.effective().unwrap();
    assert!(effective.contains("connect_timeout = \"5s\""), "{effective}");
    assert_eq!(parse(&effective).unwrap().origins().unwrap(), origins);
    let inline = parse(&GOOD.replace("root = \"video\"", "origin = \"unix:/run/app.sock\"")).unwrap();
    assert_eq!(inline.origins().unwrap()[0].name, "unix:/run/app.sock");
}

#[test]
fn wrong_origins_are_named_with_their_line() {
    for (replace, with, expected) in [
        ("name = \"app\"\n", "", "toml:10: "),
        ("name = \"app\"", "name = \"http://x\"", "toml:11: origin.0.name: give a name, not a URL"),
        ("http://a:1", "ftp://a", "toml:12: origin.0.servers.0: `ftp://a`: give http://HOST:PORT"),
        ("http://a:1", "http://b:1", "`http://b:1` is listed twice"),
        ("servers = [\"http://a:1\", \"http://b:1\"]", "", "give 1 to 64 servers"),
        ("servers", "weights = [1]\nservers", "toml:12: origin.0.weights: give each server a weight"),
        ("servers", "retries = 11\nservers", "origin.0.retries: 11 is not between 0 and 10"),
        ("servers", "read_timeout = \"0s\"\nservers", "origin.0.read_timeout: give a time between"),
        ("servers", "protocol = \"h2\"\nservers", "without TLS use h2c"),
        ("servers", "protocol = \"h3\"\nservers", "not one of auto, http1, h2, h2c"),
        ("servers", "private_key = \"k\"\nservers", "go together"),
        ("servers", "health = { status = [\"ok\"] }\nservers", "origin.0.health.status: give statuses"),
        ("servers", "host = \"a b\"\nservers", "origin.0.host: `host` is a name"),
        ("servers", "retry = 1\nservers", "did you mean `retries`?"),
        ("servers", "trust = [\"x\"]\nservers", "origin.0.trust"),
    ] {
        let error = parse(&format!("{GOOD}{}", ORIGIN.replacen(replace, with, 1))).unwrap_err();
        assert!(error.contains(expected), "{with}: {error}");
    }
    let twice = parse(&format!("{GOOD}{ORIGIN}{ORIGIN}")).unwrap_err();
    assert!(twice.contains("toml:14: origin.1.name: `app` is defined twice"), "{twice}");
}
