//! What the configuration accepts, and what it says about what it does not.

use expressway_dataplane::IoMode;
use expressway_web::LimitRate;

use super::*;

const GOOD: &str = r#"
[server]
listen = ["192.0.2.1:443", "[2001:db8::1]:443"]
workers = "auto"
[io]
mode = "hybrid"
[tls]
certificate = "cert.pem"
private_key = "/etc/key.pem"
[[site]]
hosts = ["edge.example"]
root = "video"
[admin]
listen = "127.0.0.1:9180"
"#;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("/srv/edge.toml"), text.into()).map_err(|error| error.to_string())
}

fn error_after(replace: &str, with: &str) -> String {
    assert!(GOOD.contains(replace), "the good configuration has no {replace:?}");
    parse(&GOOD.replacen(replace, with, 1)).expect_err("the configuration should be refused")
}

#[test]
fn the_contract_example_is_accepted() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.listen().len(), 2);
    assert_eq!(config.io.mode, IoMode::Hybrid);
    let certificates = config.certificates();
    assert_eq!(certificates.len(), 1);
    assert_eq!(certificates[0].certificate.get_ref(), Path::new("/srv/cert.pem"));
    assert_eq!(certificates[0].private_key.get_ref(), Path::new("/etc/key.pem"));
    assert_eq!(config.sites[0].root.as_ref().unwrap().get_ref(), Path::new("/srv/video"));
    assert!(!config.quic.early_data, "0-RTT is off unless asked for");
}

#[test]
fn strategies_of_waiting_carry_their_tuning() {
    use expressway_netio::Wait;
    use expressway_netio::wait::{BusyPoll, Spin};
    let io = |keys: &str| parse(&GOOD.replace("mode = \"hybrid\"", keys)).unwrap().io;
    assert_eq!(io("").config().wait, Wait::Interrupt);
    assert_eq!(io("wait = \"spin\"").config().wait, Wait::Spin(Spin::default()));
    let spin = Spin { kernel_interval: Duration::from_millis(1) };
    assert_eq!(io("wait = \"spin\"\nspin_kernel = \"1ms\"").config().wait, Wait::Spin(spin));
    let polled = io("wait = \"busy-poll\"\nbusy_poll = \"70us\"\nbusy_poll_budget = 16\n\
         napi = { defer_hard_irqs = 2, gro_flush_timeout = \"200us\", irq_suspend_timeout = \"20ms\" }");
    let expected = BusyPoll { time: Duration::from_micros(70), budget: 16 };
    assert_eq!(polled.config().wait, Wait::BusyPoll(expected));
    let napi = polled.config().napi.unwrap();
    assert_eq!((napi.defer_hard_irqs, napi.gro_flush_timeout), (2, Duration::from_micros(200)));
    assert_eq!(napi.irq_suspend_timeout, Duration::from_millis(20));
}

#[test]
fn a_wildcard_stands_for_names_below_it() {
    assert!(parse(&GOOD.replace("\"edge.example\"", "\"*.edge.example\", \"edge.example\"")).is_ok());
}

#[test]
fn an_unknown_key_names_the_nearest() {
    assert_eq!(
        error_after("certificate =", "certifcate ="),
        "/srv/edge.toml:8: tls.certifcate: unknown key; did you mean `certificate`?"
    );
    assert_eq!(
        error_after("root =", "rooot ="),
        "/srv/edge.toml:12: site.0.rooot: unknown key; did you mean `root`?"
    );
    assert!(error_after("[admin]", "[adminn]").contains("did you mean `admin`?"));
    let far = error_after("workers =", "zzzzzzzzzzzzzzzz =");
    assert!(far.contains("valid keys here: listen, tcp, alt_svc, workers"), "{far}");
}

#[test]
fn a_bad_value_names_file_line_and_key() {
    let mode = error_after("\"hybrid\"", "\"warp\"");
    assert_eq!(
        mode,
        "/srv/edge.toml:6: io.mode: `warp` is not one of auto, zerocopy, copy, hybrid, generic, udp"
    );
    let address = error_after("\"192.0.2.1:443\"", "\"192.0.2.1\"");
    assert!(address.starts_with("/srv/edge.toml:3: server.listen.0: invalid socket address"), "{address}");
    let workers = error_after("\"auto\"", "0");
    assert_eq!(workers, "/srv/edge.toml:4: server.workers: give \"auto\" or a number from 1 to 255");
}

#[test]
fn what_clients_of_the_admin_listener_may_take_is_configured() {
    let limits = |with: &str| parse(&GOOD.replace("[admin]", with)).unwrap().admin.unwrap().limits();
    assert_eq!(limits("[admin]"), expressway_gateway::admin::Limits::default());
    let keys = "max_connections = 8\nheader_timeout = \"2s\"\nwrite_timeout = \"3s\"\nmax_header = \"8KiB\"\n\
                max_pages = \"2MiB\"";
    let expected = expressway_gateway::admin::Limits {
        connections: 8,
        header_timeout: Duration::from_secs(2),
        write_timeout: Duration::from_secs(3),
        header: 8 << 10,
        pages: 2 << 20,
    };
    assert_eq!(limits(&format!("[admin]\n{keys}")), expected);
}

#[test]
fn values_that_parse_but_make_no_sense_are_refused() {
    let cases = [
        ("\"192.0.2.1:443\", ", "\"[2001:db8::1]:443\", ", "is listed twice"),
        ("\"192.0.2.1:443\"", "\"192.0.2.1:0\"", "port 0"),
        ("workers =", "node = \"\"\nworkers =", "1 to 255 bytes"),
        ("mode = \"hybrid\"", "frames = 1000", "power of two"),
        ("mode = \"hybrid\"", "busy_poll = \"50us\"", "only allowed with wait = \"busy-poll\""),
        ("mode = \"hybrid\"", "spin_kernel = \"50us\"", "only allowed with wait = \"spin\""),
        ("mode = \"hybrid\"", "wait = \"doze\"", "not one of interrupt, busy-poll, spin"),
        ("mode = \"hybrid\"", "wait = \"busy-poll\"\nbusy_poll = \"50\"", "not a unit of time"),
        ("mode = \"hybrid\"", "wait = \"busy-poll\"\nbusy_poll = \"11ms\"", "between"),
        ("mode = \"hybrid\"", "wait = \"busy-poll\"\nbusy_poll_budget = 65", "8 to 64"),
        ("mode = \"hybrid\"", "wait = \"spin\"\nspin_kernel = \"0us\"", "between"),
        (
            "mode = \"hybrid\"",
            "napi = { defer_hard_irqs = 2, gro_flush_timeout = \"200us\" }",
            "only allowed with wait = \"busy-poll\"",
        ),
        (
            "mode = \"hybrid\"",
            "wait = \"busy-poll\"\nnapi = { defer_hard_irqs = 0, gro_flush_timeout = \"200us\" }",
            "1 to 10000",
        ),
        (
            "mode = \"hybrid\"",
            "wait = \"busy-poll\"\nnapi = { defer_hard_irqs = 2, gro_flush_timeout = \"200us\", irq_suspend_timeout = \"100us\" }",
            "greater than gro_flush_timeout",
        ),
        ("mode = \"hybrid\"", "tx_budget = 31", "32 to 2048"),
        ("mode = \"hybrid\"", "frames = 1024\ntx_budget = 513", "32 to 512"),
        ("mode = \"hybrid\"", "queues = [0, 1, 0]", "each at most once"),
        ("mode = \"hybrid\"", "queues = []", "receive queue numbers"),
        ("mode = \"hybrid\"", "dispatcher = \"sometimes\"", "auto"),
        ("mode = \"hybrid\"", "dispatcher = \"always\"\nattach = \"offload\"", "does not support offload"),
        ("[io]", "[quic]\nmax_payload = 1000\n[io]", "1200"),
        ("[io]", "[quic]\nmax_requests = 0\n[io]", "not between"),
        ("[io]", "[quic]\nmax_payload = 20000\n[io]", "16383"),
        ("[io]", "[quic]\nmax_requests = 20000\n[io]", "between 1 and 10000"),
        ("[io]", "[quic]\nmax_connections = 0\n[io]", "not between"),
        ("[io]", "[quic]\nidle_timeout = \"500ms\"\n[io]", "24h"),
        ("[io]", "[quic]\nsend_window = \"32KiB\"\n[io]", "not between"),
        ("[io]", "[quic]\nconnection_memory = \"2MiB\"\n[io]", "at least send_window and 64 KiB"),
        ("[io]", "[quic]\nmax_open_files = 0\n[io]", "not between"),
        ("[io]", "[quic]\nresponse_timeout = \"10ms\"\n[io]", "24h"),
        ("[io]", "[quic]\nrequest_timeout = \"25h\"\n[io]", "24h"),
        (
            "workers =",
            "memory = \"300MiB\"\nworkers =",
            "at least [files] cache (268435456 bytes) and 64 MiB",
        ),
        ("[io]", "[files]\nreaders = 0\n[io]", "not between"),
        ("[admin]", "[admin]\nmax_connections = 0", "between 1 and 10000"),
        ("[admin]", "[admin]\nheader_timeout = \"50ms\"", "between \"100ms\" and"),
        ("[admin]", "[admin]\nwrite_timeout = \"2h\"", "between \"100ms\" and"),
        ("[admin]", "[admin]\nmax_header = \"4KiB\"", "between 8192 and 1048576"),
        ("[admin]", "[admin]\nmax_pages = 1000", "between 1048576 and"),
        ("\"edge.example\"", "\"Edge.example\"", "lower case"),
        ("\"edge.example\"", "\"*\"", "not a host name"),
        ("\"edge.example\"", "\"*.\"", "not a host name"),
        ("\"edge.example\"", "\"a.*.example\"", "not a host name"),
        ("\"edge.example\"", "\"a..example\"", "not a host name"),
        ("\"edge.example\"", "\"a.example\", \"a.example\"", "another site"),
        ("root = \"video\"", "root = \"video\"\norigin = \"http://127.0.0.1:1\"", "not both"),
        ("root = \"video\"", "origin = \"http://127.0.0.1:1/a\"", "only scheme, host and port"),
        ("root = \"video\"", "origin = \"app\"", "no [[origin]] is named `app`"),
        ("root = \"video\"", "", "missing root or origin"),
        ("[io]", "[control]\nthreads = 0\n[io]", "between 1 and 64"),
        ("private_key =", "keylog =", "give private_key too"),
        ("certificate =", "keylog =", "give certificate too"),
        ("[[site]]", "ticket_rotation = \"1s\"\n[[site]]", "between \"1m\" and"),
        ("[[site]]", "client_auth = \"required\"\n[[site]]", "give client_ca too"),
        ("[[site]]", "client_ca = \"ca.pem\"\n[[site]]", "\"optional\" or \"required\""),
        ("[[site]]", "client_auth = \"perhaps\"\n[[site]]", "not one of none, optional, required"),
        ("[[site]]", "unknown_name = \"drop\"\n[[site]]", "not one of default, reject"),
        ("[[site]]", "[[certificate]]\ncertificate = \"x\"\n[[site]]", "private_key"),
        ("[admin]", "[tcp]\nmax_header = 100\n[admin]", "between 4096 and"),
        ("[admin]", "[tcp]\nidle_timeout = \"25h\"\n[admin]", "\"24h\""),
        ("[admin]", "[tcp]\nproxy_protocol = [\"10.0.0.0/40\"]\n[admin]", "neither an address nor a prefix"),
        ("[admin]", "[[http]]\nlisten = \"192.0.2.1\"\n[admin]", "nor unix:PATH"),
        ("[admin]", "[[http]]\nlisten = \"192.0.2.1:0\"\n[admin]", "port 0"),
        ("[admin]", "[[http]]\nlisten = \"192.0.2.1:80\"\nstatus = 200\n[admin]", "301, 302, 307 or 308"),
        ("[admin]", "[[http]]\nlisten = \"192.0.2.1:80\"\naction = \"run\"\n[admin]", "redirect, serve"),
    ];
    for (replace, with, expected) in cases {
        let error = error_after(replace, with);
        assert!(error.contains(expected), "{with:?} gave {error:?}");
        assert_eq!(error.lines().count(), 1);
        assert!(error.starts_with("/srv/edge.toml:"));
    }
}

#[test]
fn broken_toml_and_missing_parts_are_one_line_errors() {
    for text in ["[server", "server = 3", "", "[server]\nlisten = []"] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(parse("[server]\nlisten=[\"127.0.0.1:443\"]").unwrap_err().contains("no [[site]]"));
}

#[test]
fn files_that_are_not_there_are_named_with_their_key() {
    let error = parse(GOOD).unwrap().check_files().unwrap_err().to_string();
    assert!(error.starts_with("/srv/edge.toml:8: tls.certificate: /srv/cert.pem: No such file"), "{error}");
}

#[test]
fn qlog_takes_a_build_that_writes_it() {
    let config = parse(&format!("{GOOD}[quic]\nqlog = \"/\"\n")).unwrap();
    let error = config.check_qlog(false).unwrap_err().to_string();
    assert!(error.contains("quic.qlog: this build does not support qlog"), "{error}");
    config.check_qlog(true).unwrap();
}

#[test]
fn rules_of_a_site_become_what_it_does() {
    let config = parse(
        &(GOOD
            .replace("root = \"video\"", "root = \"video\"\nerror_pages = { 404 = \"/404.html\" }")
            .replace(
                "[admin]",
                "[[site.rule]]\ncors = true\nheaders = { cache-control = \"max-age=60\", server = false }\n\
         [[site.rule]]\npath = \"/old/*\"\nredirect = \"/new/*\"\nstatus = 301\n\
         [[site.rule]]\npath = \"/in/*\"\nallow = [\"192.0.2.0/24\"]\n\
         cors = { origins = [\"https://a.example\"], max_age = \"1h\" }\n[admin]",
            )),
    )
    .unwrap();
    let rules = config.sites[0].rules(None).unwrap();
    assert_eq!(rules.iter().map(|rule| rule.path.to_string()).collect::<Vec<_>>(), ["*", "/old/*", "/in/*"]);
    assert_eq!((rules[0].set.len(), rules[0].remove.len()), (1, 1));
    assert_eq!(rules[1].redirect.as_ref().unwrap().1, 301);
    let cors = rules[2].cors.as_ref().unwrap();
    assert_eq!((cors.origins.len(), cors.max_age), (1, 3600));
    assert_eq!(config.sites[0].error_pages().unwrap()[0].0, 404);
    let only =
        "[[site]]\nhosts = [\"b.example\"]\n[[site.rule]]\nredirect = \"https://a.example/*\"\n[admin]";
    assert!(parse(&GOOD.replace("[admin]", only)).is_ok(), "a site of nothing but rules");
}

#[test]
fn wrong_rules_are_named_with_their_line() {
    for (rule, line, expected) in [
        ("path = \"a\"", "toml:14: ", "begin the path with / or *"),
        ("redirect = \"//*\"", "toml:14: ", "this target can name any host"),
        ("redirect = \"/a\"\nstatus = 200", "toml:15: ", "give a status from 301 to 308"),
        ("respond = 100", "toml:14: ", "give a status from 200 to 599"),
        ("status = 301", "toml:14: ", "status is a redirect"),
        ("headers = { \"a b\" = \"x\" }", "toml:14: ", "`a b` is not a header field"),
        ("headers = { a = true }", "toml:14: ", "`a` needs a value"),
        ("headers = { a = \"\\n\" }", "toml:14: ", "`a` has an invalid value"),
        ("allow = [\"192.0.2.0/33\"]", "toml:14: ", "site.0.rule.0.allow"),
        ("cors = { origin = [] }", "toml:14: ", "site.0.rule.0.cors"),
        ("cors = { origins = [\"\\n\"] }", "toml:14: ", "cors has an invalid value"),
        ("rate = \"10/d\"", "toml:14: ", "give a rate"),
        ("rate = { rate = \"1/s\", burst = 0 }", "toml:14: ", "give a rate"),
        ("rewrit = \"/a\"", "toml:14: ", "did you mean `rewrite`?"),
    ] {
        let error = error_after("[admin]", &format!("[[site.rule]]\n{rule}\n[admin]"));
        assert!(error.contains(line) && error.contains(expected), "{rule}: {error}");
    }
    for (pages, expected) in
        [("200 = \"/a\"", "a status from 400 to 599"), ("404 = \"a\"", "`a` is not a path")]
    {
        let error = error_after("[admin]", &format!("error_pages = {{ {pages} }}\n[admin]"));
        assert!(error.contains(expected), "{pages}: {error}");
    }
}

#[test]
fn what_is_in_force_is_a_configuration_that_says_the_same() {
    let rules = "[[site.rule]]\npath = \"/a/*\"\nheaders = { a = \"b\", c = false }\ncors = { origins = [\"https://a\"] }\n\
         limit_rate = \"1MiB\"\nlimit_rate_after = \"2MiB\"\ncmcd_rtp = true\n\
         [site.video]\nhls_hold = \"18s\"\n[[http]]\nlisten = \"unix:/s\"\nproxy_protocol = [\"10.0.0.0/8\"]\n\
         [io.napi]\ndefer_hard_irqs = 2\ngro_flush_timeout = \"200us\"\n[admin]";
    let config = parse(
        &GOOD
            .replace("mode = \"hybrid\"", "mode = \"hybrid\"\nwait = \"busy-poll\"\nqueues = [0]")
            .replace("[admin]", &format!("error_pages = {{ 404 = \"/e\" }}\n{rules}")),
    )
    .unwrap();
    let effective = config.effective().unwrap();
    for line in
        ["workers = \"auto\"", "idle_timeout = \"30s\"", "cache = \"256MiB\"", "root = \"/srv/video\""]
    {
        assert!(effective.contains(line), "no {line} in\n{effective}");
    }
    assert_eq!(parse(&effective).unwrap().effective().unwrap(), effective);
}

/// The commented default configuration in docs/.
const DEFAULT: &str = include_str!("../../../../../docs/expressway.toml");

#[test]
fn the_documented_defaults_are_the_defaults() {
    let least = "[server]\nlisten = [\"192.0.2.1:443\"]\n[tls]\ncertificate = \"cert.pem\"\nprivate_key = \"key.pem\"\n\
                 [[site]]\nhosts = [\"edge.example\"]\nroot = \"/srv/video\"\n";
    let documented = parse(DEFAULT).unwrap().effective().unwrap();
    assert_eq!(documented, parse(least).unwrap().effective().unwrap());
}

#[test]
fn what_the_documented_defaults_leave_out_is_valid_too() {
    let is_key = |line: &str| {
        let name = line.split(" = ").next().unwrap_or("");
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        line.contains(" = ") && is_name || line.starts_with('[')
    };
    let uncommented: String = DEFAULT
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line).to_owned() + "\n")
        .filter(|line| !["device_plugin", "queues", "root"].iter().any(|key| line.starts_with(key)))
        .collect();
    assert!(uncommented.contains("\nredirect = ") && uncommented.contains("\n[admin]"), "{uncommented}");
    // Some only go with other values of their section, or without [keys].
    let waiting = ["busy_poll", "spin_kernel", "napi", "client_", "ticket_keys"];
    let rest: String = uncommented
        .lines()
        .filter(|line| !waiting.iter().any(|key| line.starts_with(key)))
        .map(|line| line.to_owned() + "\n")
        .collect();
    parse(&rest).unwrap();
}

#[test]
fn keys_of_tokens_are_read_from_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let rule = "[[site.rule]]\npath = \"/vod/*\"\ntoken = { keys = \"token.keys\", cookie = true }\n[admin]";
    let text = GOOD.replace("[admin]", rule);
    let config = Config::parse(&folder.path().join("edge.toml"), text).unwrap();
    let (span, problem) = config.sites[0].rules(None).unwrap_err();
    assert!(problem.contains("token.keys: No such file"), "{problem}");
    assert_eq!(
        config.at(span, problem).to_string().matches("edge.toml:15: site.0.rule.0.token.keys").count(),
        1
    );
    std::fs::write(folder.path().join("token.keys"), "00112233445566778899aabbccddeeff\n").unwrap();
    let rules = config.sites[0].rules(None).unwrap();
    let token = rules[0].token.as_ref().unwrap();
    assert_eq!(
        (token.name.as_str(), format!("{:?}", token.keys), token.set_cookie),
        ("hdnts", "TokenKeys(1)".to_owned(), true)
    );
    assert!(!config.effective().unwrap().contains("001122"), "keys are not shown");
}

#[test]
fn video_has_times_to_cache_that_rules_may_change() {
    let rule = "[[site.rule]]\npath = \"*.m3u8\"\nrate = \"90/m\"\nheaders = { cache-control = \"no-cache\" }\n[admin]";
    let text = GOOD.replace("[admin]", rule).replace("root = \"video\"", "root = \"video\"\nvideo = true");
    let rules = parse(&text).unwrap().sites[0].rules(None).unwrap();
    assert_eq!(rules.first().unwrap().set[0].1, "max-age=2");
    let last = rules.last().unwrap();
    assert_eq!(last.set[0].1, "no-cache");
    assert_eq!(format!("{:?}", last.rate.as_ref().unwrap()), "RateLimit { rate: 1.5, burst: 2.0, .. }");
}

#[test]
fn limits_of_rates_are_those_of_the_last_rule_that_has_one() {
    let limit = |rule: &str| {
        let text = GOOD.replace("[admin]", &format!("[[site.rule]]\n{rule}\n[admin]"));
        parse(&text).map(|config| config.sites[0].rules(None).unwrap()[0].limit)
    };
    let expected = LimitRate { rate: 1 << 20, after: 5, cmcd_rtp: false };
    assert_eq!(limit("limit_rate = \"1MiB\"\nlimit_rate_after = 5").unwrap(), Some(expected));
    let none = LimitRate { rate: 0, after: 0, cmcd_rtp: false };
    assert_eq!(limit("limit_rate = 0").unwrap(), Some(none), "lifts that of another rule");
    assert_eq!(limit("cmcd_rtp = true").unwrap(), Some(LimitRate { cmcd_rtp: true, ..none }));
    assert_eq!(limit("cmcd_rtp = false").unwrap(), None);
    for (rule, expected) in
        [("limit_rate = 1023", "at least \"1KiB\""), ("limit_rate_after = 1", "needs limit_rate")]
    {
        let error = limit(rule).unwrap_err();
        assert!(error.contains(expected), "{rule}: {error}");
    }
    let video = |keys: &str| parse(&GOOD.replace("[admin]", &format!("[site.video]\n{keys}\n[admin]")));
    assert!(video("hls_hold = \"10s\"").is_ok());
    assert!(video("preload_hints = true").unwrap_err().contains("needs hls_hold"));
}

#[test]
fn more_certificates_stand_behind_that_of_the_tls_section() {
    let more = "[[certificate]]\ncertificate = \"b.pem\"\nprivate_key = \"b.key\"\nocsp = \"b.ocsp\"\n";
    let paths = |config: &Config| -> Vec<PathBuf> {
        config.tls_paths().iter().map(|path| path.get_ref().clone()).collect()
    };
    let config = parse(&format!("{GOOD}{more}")).unwrap();
    let expected = ["/srv/cert.pem", "/etc/key.pem", "/srv/b.pem", "/srv/b.key", "/srv/b.ocsp"];
    assert_eq!(paths(&config), expected.map(PathBuf::from));
    let others =
        "ticket_keys = \"t\"\nclient_ca = \"ca.pem\"\nclient_auth = \"optional\"\nech_keys = \"ech\"\n";
    let alone = format!("[tls]\n{others}{more}[[site]]");
    let (start, end) = (GOOD.find("[tls]").unwrap(), GOOD.find("[[site]]").unwrap());
    let config = parse(&GOOD.replace(&GOOD[start..end + 8], &alone)).unwrap();
    let expected = ["/srv/b.pem", "/srv/b.key", "/srv/b.ocsp", "/srv/t", "/srv/ca.pem", "/srv/ech"];
    assert_eq!(paths(&config), expected.map(PathBuf::from));
    let error = parse(&GOOD.replace(&GOOD[start..end], "")).unwrap_err();
    assert!(error.contains("no certificate"), "{error}");
}

#[test]
fn the_key_of_connection_ids_lies_beside_the_file_and_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{GOOD}[quic.load_balancing]\nserver_id = \"0a0b\"\nkey_file = \"lb.key\"\n");
    let config = Config::parse(&folder.path().join("edge.toml"), text).unwrap();
    let (_, missing) = config.routable(None).unwrap_err();
    assert!(missing.contains("lb.key: cannot be read: No such file"), "{missing}");
    let file = folder.path().join("lb.key");
    std::fs::write(&file, "8f95f09245765f80256934e50c66207f\n").unwrap();
    let allow = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    allow(0o644);
    let (_, open) = config.routable(None).unwrap_err();
    assert!(open.contains("chmod 600"), "{open}");
    allow(0o600);
    let key = 0x8f95_f092_4576_5f80_2569_34e5_0c66_207f_u128.to_be_bytes();
    assert_eq!(config.routable(None).unwrap(), Routable::new(0, &[10, 11], Some(key)));
}
