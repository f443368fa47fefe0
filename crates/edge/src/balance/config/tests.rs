use super::*;

fn parse(text: &str) -> Result<Config, String> {
    let source = SourceFile { file: "b.toml".into(), text: text.to_owned() };
    Config::parse(source).map_err(|error| error.to_string())
}

const SMALLEST: &str = r#"[[service]]
listen = "192.0.2.10:443"
protocol = "udp"
route = "quic-lb"
[[service.node]]
address = "192.0.2.21"
weight = 1
method = "l2"
"#;

#[test]
fn the_smallest_file_is_enough() {
    let config = parse(SMALLEST).unwrap();
    let service = &config.services[0];
    assert_eq!(service.name, "192.0.2.10:443/udp");
    assert_eq!(service.nodes[0].server_id, [192, 0, 2, 21]);
    assert_eq!((service.route, service.quic.len(), service.quic[0].config), (Route::QuicLb, 1, 0));
    assert_eq!(service.idle, Duration::from_secs(120));
}

#[test]
fn errors_name_line_and_key() {
    let with = |from: &str, to: &str| parse(&SMALLEST.replace(from, to)).unwrap_err();
    let cases = [
        (with("192.0.2.10:443", "192.0.2.10:0"), "b.toml:2: service.0.listen: the port must not be 0"),
        (with("192.0.2.10:443", "0.0.0.0:443"), "b.toml:2: service.0.listen: name the service's own"),
        (with("weight = 1", "weight = 1001"), "b.toml:7: service.0.node.0.weight: must be 1000 or less"),
        (with("weight", "wieght"), "did you mean"),
        (with("\"udp\"", "\"tcp\""), "b.toml:4: service.0.route: QUIC is UDP"),
        (with("\"l2\"", "\"gre\""), "`gre` is not one of l2, ipip, gue"),
        (with("weight = 1", "server_id = \"0\""), "1 to 15 bytes in hexadecimal"),
        (with("192.0.2.21", "127.0.0.1"), "127.0.0.1 cannot be a node's address"),
        (parse("").unwrap_err(), "no [[service]]"),
        (with("[[service.node]]\n", "[service.check]\nkind = \"tcp\"\n[[service.node]]\nx = 1\n"), "x"),
        (
            parse(&format!("{SMALLEST}{SMALLEST}")).unwrap_err(),
            "192.0.2.10:443 is already used by another service",
        ),
        (
            parse(&format!("{SMALLEST}[[service.node]]\naddress = \"192.0.2.21\"\n")).unwrap_err(),
            "192.0.2.21 is listed twice",
        ),
        (
            parse(&format!("{SMALLEST}[[service.node]]\naddress = \"192.0.2.22\"\nserver_id = \"01\"\n"))
                .unwrap_err(),
            "b.toml:11: service.0.node.1.server_id: must have 4 bytes",
        ),
        (parse(&format!("flows = 5\n{SMALLEST}")).unwrap_err(), "b.toml:1: flows: must be from 1024"),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{error} | {expected}");
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn what_only_a_start_reads_is_told_apart() {
    let now = parse(SMALLEST).unwrap();
    let changed = |head: &str| now.fixed_change(&parse(&format!("{head}\n{SMALLEST}")).unwrap());
    assert_eq!(changed("interfaces = [\"eth7\"]"), None);
    for line in
        ["mode = \"native\"", "pin = true", "chain = true", "flows = 2048", "probation = 2048", "seed = 1"]
    {
        assert_eq!(changed(line), line.split(' ').next());
    }
    assert_eq!(changed("[admin]\nlisten = \"127.0.0.1:9180\""), Some("[admin]"));
}

#[test]
fn services_are_as_many_as_can_all_be_renamed() {
    let services = |count: u16| -> String {
        (0..count).map(|port| SMALLEST.replace(":443", &format!(":{}", 1000 + port))).collect()
    };
    assert_eq!(parse(&services(128)).unwrap().services.len(), 128);
    assert!(parse(&services(129)).unwrap_err().ends_with("more than 128 services"));
}
