"""Requests that are passed on: over HTTP/3 to expressway, and from it to nginx, Caddy and one that says what it got."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import clients, origins
from harness.lab import Lab
from harness.origins import ask
from harness.server import Server

FILES = 8001
OTHER = 8002
TOLD = 8003
CADDY = 8004
PROXY = 8005

Start = Callable[..., origins.Process]

STATIC = """
server {{
  listen 127.0.0.1:{port}; root {root}; absolute_redirect off;
  location / {{ add_header x-server {port}; }}
  location /slow/ {{ alias {root}/; limit_rate 200k; }}
  location = /moved {{ return 302 /elsewhere?x=1; }}
  location = /gone {{ return 410 "gone\\n"; }}
  location = /nothing {{ return 204; }}
  location = /secret {{ auth_basic "x"; auth_basic_user_file /dev/null; }}
  location /status/ {{ return 503; }}
  {more}
}}
"""


@pytest.fixture
def asks():
    """Starts a client that asks; it ends with its test at the latest."""
    started: list[subprocess.Popen[str]] = []

    def start(lab: Lab, certificates: Path, requests: list[dict], **more: object) -> subprocess.Popen[str]:
        asking = origins.client(lab)
        started.append(asking)
        assert asking.stdin
        asking.stdin.write(origins.job(lab, certificates, requests, **more))
        asking.stdin.close()
        asking.stdin = None
        return asking

    yield start
    for asking in started:
        asking.kill()
        asking.wait()


@pytest.fixture
def static(processes, tmp_path: Path, root: Path) -> Callable[..., origins.Process]:
    """Starts an nginx that serves the clips."""

    def start(lab: Lab, port: int = FILES, more: str = "") -> origins.Process:
        servers = STATIC.format(port=port, root=root, more=more)
        return processes(origins.nginx(lab, tmp_path / f"nginx-{port}", port, servers))

    return start


def origin(*ports: int, more: str = "") -> str:
    """A site that passes on to servers on these ports, and their section."""
    servers = ", ".join(f'"http://127.0.0.1:{port}"' for port in ports)
    return f'origin = "app"\n[[origin]]\nname = "app"\nservers = [{servers}]\n{more}\n'


def serve(make_server, lab: Lab, site: str, **settings) -> Server:
    """A server whose one site that is."""
    server = make_server(lab, mode="udp", root=None, site=site, **settings)
    server.expect("out of service", "an origin's name")
    return server


def test_files_pass_through_as_they_are(make_lab, make_server, static, certificates: Path, root: Path) -> None:
    lab = make_lab()
    static(lab)
    server = serve(make_server, lab, f'origin = "http://127.0.0.1:{FILES}"\n')
    whole = clients.sha256(root / "long.mp4")
    got = ask(lab, certificates, [{"path": "/long.mp4"}, {"path": "/long.mp4", "count": 4}], at_once=5)
    assert [(reply.status, reply.bytes, reply.reset, reply.sha256 == whole) for reply in got] == [
        (200, (root / "long.mp4").stat().st_size, None, True)
    ] * 5
    (head,) = ask(lab, certificates, [{"method": "HEAD", "path": "/long.mp4"}])
    assert head.bytes == 0 and head.field("content-length") == [str((root / "long.mp4").stat().st_size)]
    etag = head.field("etag")[0]
    requests = [
        {"path": "/long.mp4", "headers": [["range", "bytes=1000-1999"]]},
        {"path": "/long.mp4", "headers": [["range", "bytes=-500"]]},
        {"path": "/long.mp4", "headers": [["range", "bytes=999999999999-"]]},
        {"path": "/long.mp4", "headers": [["if-none-match", etag]]},
        {"path": "/none"},
        {"path": "/moved"},
        {"method": "POST", "path": "/small.txt", "body": "x"},
    ]
    got = ask(lab, certificates, requests)
    assert [reply.status for reply in got] == [206, 206, 416, 304, 404, 302, 405]
    assert got[0].sha256 == clients.sha256(root / "long.mp4", slice(1000, 2000))
    assert got[5].field("location") == ["/elsewhere?x=1"]
    for name in ("curl", "quicgo"):
        (answer,) = clients.fetch(lab, name, origins.address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
        assert answer.sha256 == clients.sha256(root / "clip.mp4")
    metrics = server.metrics()
    assert metrics.sum("origin_requests_total") == 15 and metrics.sum("origin_up") == 1
    assert 1 <= metrics.sum("origin_connections_total") <= 8, "connections are used again"
    assert metrics.sum("origin_failures_total") == 0


def test_the_origin_gets_what_the_client_sent(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    lab = make_lab()
    log = tmp_path / "access.log"
    with origins.telling(lab, TOLD):
        server = serve(make_server, lab, origin(TOLD), more={"log": {"access": f'"{log}"'}})
        requests = [
            {"method": "POST", "path": "/a?b=%20c", "body": "hello", "headers": [["content-length", "5"]]},
            {"method": "PUT", "path": "/up", "size": 20 << 20},
            {"method": "DELETE", "path": "/x"},
            {"method": "PROPFIND", "path": "/", "headers": [["depth", "1"], ["x-forwarded-for", "10.0.0.1"]]},
            {
                "method": "POST",
                "path": "/t?trailers",
                "body": "x",
                "headers": [["te", "trailers"], ["trailer", "x-sum"]],
                "trailers": [["x-sum", "1"]],
            },
        ]
        post, put, delete, find, both = ask(lab, certificates, requests)
        assert (post.told()["method"], post.told()["target"], post.told()["bytes"]) == ("POST", "/a?b=%20c", 5)
        assert post.told()["fields"]["content-length"] == "5"
        assert (put.told()["bytes"], put.told()["fields"]["transfer-encoding"]) == (20 << 20, "chunked")
        assert delete.told()["method"] == "DELETE" and "transfer-encoding" not in delete.told()["fields"]
        fields = find.told()["fields"]
        assert fields["x-forwarded-for"] == lab.client["ipv4"] and fields["x-forwarded-proto"] == "https"
        assert fields["via"] == "3.0 expressway" and fields["depth"] == "1" and fields["host"].startswith("edge.test")
        assert both.told()["trailers"] == ["x-sum: 1"] and both.trailers == {"x-sum": "7"}
        for reply in (post, put, find):
            assert reply.field("set-cookie") == ["a=1", "b=2"] and not reply.field("x-private")
            assert not reply.field("connection") and len(reply.field("date")) == 1
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log()
    lines = log.read_text()
    assert lines.count(f'"upstream":"127.0.0.1:{TOLD}","upstream_status":200,"upstream_us":') == 5, lines


def test_a_body_that_its_origin_cannot_finish_is_reset(
    make_lab, make_server, static, asks, certificates: Path, root: Path
) -> None:
    lab = make_lab()
    nginx = static(lab)
    server = serve(make_server, lab, origin(FILES))
    asking = asks(lab, certificates, [{"path": "/slow/long.mp4"}])
    server.wait_for("it is under way", lambda m: m.sum("origin_requests_active") == 1)
    server.wait_for("some came", lambda m: m.sum("origin_response_seconds_count") == 1)
    nginx.kill()
    (reply,) = origins.replies(asking)
    assert reply.status == 200 and reply.bytes < (root / "long.mp4").stat().st_size
    assert reply.reset == 0x102, "H3_INTERNAL_ERROR, and no end that looks like one"
    server.wait_for("it is counted", lambda m: m.sum("origin_failures_total", reason="incomplete") == 1)
    (reply,) = ask(lab, certificates, [{"path": "/small.txt"}])
    assert (reply.status, reply.body) == (502, b"502 Bad Gateway\n")
    nginx.start()
    (reply,) = ask(lab, certificates, [{"path": "/small.txt"}])
    assert (reply.status, reply.body) == (200, b"A small file.\n")


def test_a_server_that_dies_under_load_costs_no_request(
    make_lab, make_server, static, asks, certificates: Path
) -> None:
    lab = make_lab()
    first, _ = static(lab, FILES), static(lab, OTHER)
    server = serve(make_server, lab, origin(FILES, OTHER, more='eject_time = "500ms"'))
    requests = [{"path": "/small.txt", "count": 100}, {"method": "HEAD", "path": "/small.txt", "count": 20}]
    asking = asks(lab, certificates, requests, at_once=20, seconds=6)
    for _ in range(2):
        before = server.metrics().sum("origin_requests_total", server=f"127.0.0.1:{FILES}")
        server.wait_for(
            "it has some of the load",
            lambda m, before=before: m.sum("origin_requests_total", server=f"127.0.0.1:{FILES}") > before + 20,
        )
        first.kill()
        server.wait_for("it is out of service", lambda m: m.sum("origin_up", server=f"127.0.0.1:{FILES}") == 0)
        first.start()
    got = origins.replies(asking)
    assert len(got) >= 120 and {(reply.status, reply.reset) for reply in got} == {(200, None)}
    metrics = server.metrics()
    assert metrics.sum("origin_retries_total") > 0
    server.wait_for("it is back", lambda m: m.sum("origin_up") == 2)


def test_a_server_whose_checks_fail_gets_nothing(
    make_lab, make_server, static, certificates: Path, root: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    well = tmp_path / "well"
    well.mkdir()
    (well / "ok").write_text("ok\n")
    more = f"location = /health/ok {{ alias {well}/ok; }}"
    static(lab, FILES, more)
    static(lab, OTHER, "location = /health/ok { return 200; }")
    health = '[origin.health]\npath = "/health/ok"\ninterval = "50ms"\nstatus = ["200"]\nrise = 1\nfall = 1'
    server = serve(make_server, lab, origin(FILES, OTHER, more=health))

    def answering() -> set[str]:
        got = ask(lab, certificates, [{"path": "/small.txt", "count": 10}], at_once=10)
        assert {reply.status for reply in got} == {200}
        return {reply.field("x-server")[0] for reply in got}

    server.wait_for("both are checked", lambda m: m.sum("origin_up") == 2)
    assert answering() == {str(FILES), str(OTHER)}
    (well / "ok").unlink()
    server.wait_for("it fails its check", lambda m: m.sum("origin_up", server=f"127.0.0.1:{FILES}") == 0)
    assert answering() == {str(OTHER)}
    (well / "ok").write_text("ok\n")
    server.wait_for("it is well again", lambda m: m.sum("origin_up") == 2)
    assert answering() == {str(FILES), str(OTHER)}


def test_certificates_of_origins_are_verified_and_http2_is_spoken(
    make_lab, make_server, processes, certificates: Path, root: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    tls = f"""server {{
      listen 127.0.0.1:{FILES} ssl http2; root {root}; ssl_certificate {certificates}/cert.pem;
      ssl_certificate_key {certificates}/key.pem; add_header x-protocol $server_protocol always; }}"""
    processes(origins.nginx(lab, tmp_path / "nginx-tls", FILES, tls))
    site = f':{CADDY} {{\n bind 127.0.0.1\n respond "{{http.request.method}} {{http.request.proto}} {{http.request.body}}"\n}}'
    processes(origins.caddy(lab, tmp_path / "caddy", CADDY, site))
    section = f'origin = "app"\n[[origin]]\nname = "app"\nservers = ["https://127.0.0.1:{FILES}"]\n'
    server = serve(make_server, lab, section)
    (reply,) = ask(lab, certificates, [{"path": "/small.txt"}])
    assert reply.status == 502
    assert server.metrics().sum("origin_failures_total", reason="tls") >= 1 and "tls: " in server.log()

    def reload(site: str, times: int) -> None:
        server.settings.site = site
        server.config.write_text(server.settings.text())
        server.signal(signal.SIGHUP)
        server.wait_log("reload: done", times)

    trusted = f'ca = "{certificates}/ca.pem"\nserver_name = "edge.test"\n'
    reload(section + trusted, 1)
    got = ask(lab, certificates, [{"path": "/small.txt", "count": 20}], at_once=20)
    assert {(reply.status, reply.body, reply.field("x-protocol")[0]) for reply in got} == {
        (200, b"A small file.\n", "HTTP/2.0")
    }
    assert server.metrics().sum("origin_connections_total") == 1
    reload(section + trusted + 'protocol = "http1"\n', 2)
    (reply,) = ask(lab, certificates, [{"path": "/small.txt"}])
    assert reply.field("x-protocol") == ["HTTP/1.1"]
    reload(section + trusted.replace("edge.test", "other.test"), 3)
    (reply,) = ask(lab, certificates, [{"path": "/small.txt"}])
    assert reply.status == 502
    reload(section + "verify = false\n", 4)
    (reply,) = ask(lab, certificates, [{"path": "/small.txt"}])
    assert reply.status == 200 and "ANYONE between here and this origin" in server.log()

    reload(origin(CADDY, more='protocol = "h2c"'), 5)
    got = ask(lab, certificates, [{"method": method, "path": "/", "body": "hello"} for method in ("POST", "PUT")])
    assert [reply.body for reply in got] == [b"POST HTTP/2.0 hello", b"PUT HTTP/2.0 hello"]


def test_a_reload_keeps_the_connections_of_an_origin_that_stays(
    make_lab, make_server, static, certificates: Path
) -> None:
    lab = make_lab()
    static(lab)
    server = serve(make_server, lab, origin(FILES))
    for reloads in range(3):
        (reply,) = ask(lab, certificates, [{"path": "/small.txt"}])
        assert reply.status == 200
        server.wait_for("its connection is kept", lambda m: m.sum("origin_connections_idle") == 1)
        server.signal(signal.SIGHUP)
        server.wait_log("reload: done", reloads + 1)
    assert server.metrics().sum("origin_connections_total") == 1
    server.settings.site = origin(FILES, more="retries = 1")
    server.config.write_text(server.settings.text())
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done", 4)
    assert server.metrics().sum("origin_connections_total") == 0, "another origin of the same name"


def test_a_confined_server_finds_origins_by_name(
    make_lab, make_server, static, readable: Path, root: Path
) -> None:
    lab = make_lab()
    static(lab)
    site = origin(FILES).replace("127.0.0.1", "localhost")
    more = {"server": {"user": '"nobody"'}}
    server = serve(make_server, lab, site, certificates=readable, more=more)
    (reply,) = ask(lab, readable, [{"path": "/small.txt"}])
    assert (reply.status, reply.body) == (200, b"A small file.\n"), server.log()
    assert server.metrics().sum("confined", by="seccomp") == 1


# Fields that a proxy passes on as they are; the rest is its own.
COMPARED = (
    "content-type content-length content-range content-encoding accept-ranges etag last-modified location cache-control "
    "set-cookie vary www-authenticate x-server allow expires"
).split()


def questions() -> list[dict]:
    """What nginx as a proxy and we are asked, with the same origins behind."""
    plain = ["/small.txt", "/clip.mp4", "/", "/none", "/moved", "/gone", "/nothing", "/secret", "/status/x", "/%73mall.txt"]
    odd = ["/small.txt?", "/small.txt?a=b&c=%ff", "/a//b", "/a/../b", "/./small.txt", "/small%2etxt", "/player.html#"[:-1]]
    asked: list[dict] = [{"method": method, "path": path} for path in [*plain, *odd] for method in ("GET", "HEAD")]
    asked += [{"path": "/clip.mp4", "headers": [["range", f"bytes={span}"]]} for span in ("0-0", "5-99", "-7", "9-", "0-1,4-5", "9-1", "x")]
    for name, value in [
        ("if-modified-since", "Fri, 31 Dec 2049 23:59:59 GMT"),
        ("if-unmodified-since", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("if-match", '"none"'),
        ("if-none-match", "*"),
        ("if-range", '"none"'),
        ("accept-encoding", "gzip, br"),
        ("expect", "something"),
        ("cookie", "a=b"),
    ]:
        asked.append({"path": "/clip.mp4", "headers": [[name, value], ["range", "bytes=1-9"]]})
    asked += [{"method": method, "path": "/small.txt", "body": "x"} for method in ("POST", "PUT", "DELETE", "PATCH")]
    asked.append({"method": "OPTIONS", "path": "/small.txt"})
    told = [("GET", ""), ("HEAD", ""), ("POST", "hello"), ("PUT", "hello"), ("PATCH", "{}"), ("DELETE", ""), ("OPTIONS", "")]
    asked += [{"method": method, "path": "/told/a?b=c", "body": body} for method, body in told]
    asked += [{"path": f"/told/?status={status}"} for status in (200, 201, 202, 204, 301, 304, 400, 404, 418, 429, 500, 503, 599)]
    asked += [{"method": "POST", "path": "/told/big", "size": 1 << 20}, {"path": "/told/x?y=%22&z=[1]"}]
    for fields in ([["x-a", "1"], ["x-b", ""]], [["authorization", "Basic eDp5"]], [["accept-language", "de;q=0.5, en"]]):
        asked.append({"path": "/told/fields", "headers": fields})
    return asked


def seen(reply: origins.Reply) -> tuple:
    """What has to be the same: status, fields of the content, and the content; of a report what the client decided."""
    fields = {name: reply.field(name) for name in COMPARED if reply.field(name)}
    if reply.field("content-type") != ["application/json"]:
        # A boundary is nginx's count of requests.
        (kind,) = reply.field("content-type") or [""]
        boundary = kind.partition("boundary=")[2]
        fields["content-type"] = [kind.replace(boundary, "-")] if boundary else [kind]
        return reply.status, fields, reply.body.replace(boundary.encode(), b"-") if boundary else reply.sha256
    # It tells of fields that are not the client's.
    fields.pop("content-length", None)
    if not reply.body:
        return reply.status, fields
    told = reply.told()
    own = ("host", "via", "connection", "forwarded", "transfer-encoding", "content-length", "accept-encoding")
    kept = {k: v for k, v in told["fields"].items() if k not in own and not k.startswith("x-forwarded")}
    return reply.status, fields, told["method"], told["target"], told["bytes"], told["sha256"], kept


def test_nginx_as_a_proxy_answers_the_same(
    make_lab, make_server, static, processes, certificates: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    through = f"location /told/ {{ proxy_pass http://127.0.0.1:{TOLD}; proxy_http_version 1.1; }}"
    static(lab, FILES, through)
    proxy = f"""server {{ listen 127.0.0.1:{PROXY}; location / {{ proxy_pass http://127.0.0.1:{FILES};
      proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; }} }}"""
    processes(origins.nginx(lab, tmp_path / "proxy", PROXY, proxy))
    with origins.telling(lab, TOLD):
        serve(make_server, lab, origin(FILES))
        asked = questions()
        assert len(asked) >= 75
        ours = ask(lab, certificates, asked, at_once=8)
        theirs = origins.ask_plainly(lab, PROXY, asked)
    different = [
        f"{request}: {seen(our)}, but nginx {seen(their)}"
        for request, our, their in zip(asked, ours, theirs, strict=True)
        if seen(our) != seen(their)
    ]
    assert not different, "\n".join(different)
