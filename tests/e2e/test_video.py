"""Low-latency HLS from files and from an origin, and responses that go at a rate: over HTTP/3, and over TCP with curl."""

import contextlib
import http.server
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from harness import origins
from harness.lab import Lab
from harness.namespace import run_inside
from harness.origins import ask
from harness.paths import HOST, LIMIT, PORT
from harness.server import address

NGINX_PORT, HOLDING_PORT = 8001, 8002

PROXY = """
server {{
  listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{holding}; proxy_http_version 1.1; }}
}}
"""


def playlist(segments: int) -> str:
    """One of so many segments from 100."""
    head = "#EXTM3U\n#EXT-X-TARGETDURATION:60\n#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES\n#EXT-X-MEDIA-SEQUENCE:100\n"
    listed = "".join(f"#EXTINF:4,\n{100 + number}.m4s\n" for number in range(segments))
    return f"{head}{listed}#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"{100 + segments}.0.m4s\"\n"


def publish(root: Path, segments: int) -> None:
    """Replaces the playlist by renaming."""
    new = root / "new"
    new.write_text(playlist(segments))
    os.replace(new, root / "live.m3u8")


def curl(lab: Lab, certificates: Path, version: str, path: str, *more: str) -> tuple[int, bytes]:
    """Status and body of one request with curl."""
    words = ["curl", "-sS", f"--http{version}", "--cacert", certificates / "ca.pem", "-w", "%{stderr}%{http_code}"]
    words += ["--connect-to", f"{HOST}:{PORT}:{lab.server['ipv4']}:{PORT}", "--max-time", LIMIT, *more]
    line = lab.inside("client", *map(str, words), f"https://{HOST}:{PORT}{path}")
    done = subprocess.run(line, capture_output=True, timeout=2 * LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stderr), done.stdout


def test_reloads_of_a_playlist_are_held_over_all_protocols(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    publish(root, 2)
    lab = make_lab()
    site = '[site.video]\nhls_hold = "180s"\npreload_hints = true\n'
    server = make_server(lab, mode="udp", root=root, site=site)
    server.wait_tcp([address(lab.server["ipv4"])])

    def held(number: int) -> None:
        server.wait_for(f"{number} are held", lambda m: m.sum("hls_requests_held") == number)

    (plain,) = ask(lab, certificates, [{"path": "/live.m3u8"}])
    assert (plain.status, plain.field("cache-control")) == (200, ["max-age=2"])
    wrong = ["_HLS_msn=x", "_HLS_part=1", "_HLS_msn=999999999999999999999", "_HLS_msn=18446744073709551615", "_HLS_msn=104"]
    got = ask(lab, certificates, [{"path": f"/live.m3u8?{query}"} for query in wrong])
    assert [reply.status for reply in got] == [400] * len(wrong)
    with ThreadPoolExecutor() as threads:
        reload = {"path": "/live.m3u8?_HLS_msn=102&_HLS_part=0"}
        h3 = threads.submit(ask, lab, certificates, [{**reload, "count": 100}], at_once=100)
        held(100)
        others = [threads.submit(curl, lab, certificates, version, reload["path"]) for version in ("1.1", "2")]
        held(102)
        hinted = threads.submit(curl, lab, certificates, "1.1", "/102.0.m4s")
        held(103)
        (meanwhile,) = ask(lab, certificates, [{"path": "/live.m3u8"}])
        assert meanwhile.status == 200, "others are not held up"
        # A client that goes away leaves nothing.
        gone = origins.client(lab)
        assert gone.stdin
        gone.stdin.write(origins.job(lab, certificates, [reload]))
        gone.stdin.close()
        held(104)
        gone.kill()
        gone.wait(LIMIT)
        # Cut off in place, then complete again.
        (root / "live.m3u8").write_text(playlist(2)[:40])
        time.sleep(0.2)
        server.wait_for("those that wait", lambda m: m.sum("hls_requests_held") >= 103)
        (root / "102.0.m4s").write_bytes(b"part")
        publish(root, 3)
        assert [(reply.status, reply.body.decode()) for reply in h3.result(LIMIT)] == [(200, playlist(3))] * 100
        assert [other.result(LIMIT) for other in others] == [(200, playlist(3).encode())] * 2
        assert hinted.result(LIMIT) == (200, b"part")
    held(0)
    metrics = server.metrics()
    assert metrics.sum("hls_timeouts_total") == 0 and metrics.sum("hls_refused_total") == 2


class Holding(http.server.BaseHTTPRequestHandler):
    """Answers reloads when it is told to, and counts them."""

    protocol_version = "HTTP/1.1"
    go: threading.Event
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        if "_HLS_msn" in urlsplit(self.path).query:
            self.go.wait(LIMIT)
        body = playlist(3).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=3600")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def holding(lab: Lab) -> Iterator[type[Holding]]:
    """An origin that holds reloads until `go` is set."""

    class Handler(Holding):
        go = threading.Event()
        seen: list[str] = []

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = run_inside(lab.server_namespace, lambda: Server(("127.0.0.1", HOLDING_PORT), Handler))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield Handler
    finally:
        Handler.go.set()
        server.shutdown()
        thread.join(LIMIT)
        server.server_close()


def test_an_origin_may_hold_reloads_and_is_asked_once(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    lab = make_lab()
    with holding(lab) as origin:
        servers = PROXY.format(port=NGINX_PORT, holding=HOLDING_PORT)
        nginx = origins.nginx(lab, tmp_path / "nginx", NGINX_PORT, servers)
        try:
            # The origin would be given up, and a fetch too, long before it answers.
            section = ['[[origin]]\nname = "app"', f'servers = ["http://127.0.0.1:{NGINX_PORT}"]']
            section += ['response_timeout = "1s"', "retries = 0"]
            site = 'origin = "app"\ncache = { keep_query = [] }\nvideo = { hls_hold = "180s" }\n'
            more = {"cache": {"fill_timeout": '"1s"'}}
            server = make_server(lab, mode="udp", root=None, site=site, arrays=section, more=more)
            with ThreadPoolExecutor() as threads:
                path = "/live.m3u8?session=1&_HLS_msn=102"
                h3 = threads.submit(ask, lab, certificates, [{"path": path, "count": 20}], at_once=20)
                server.wait_for("all wait", lambda m: m.sum("cache_collapsed_total") == 19)
                time.sleep(1.5)
                (plain,) = ask(lab, certificates, [{"path": "/live.m3u8?session=2"}])
                assert plain.status == 200
                origin.go.set()
                replies = h3.result(2 * LIMIT)
            assert [(reply.status, reply.body.decode()) for reply in replies] == [(200, playlist(3))] * 20
            assert sorted(origin.seen) == ["/live.m3u8?session=1&_HLS_msn=102", "/live.m3u8?session=2"]
            # What was waited for is an object of its own, and not for long.
            (again, plain, next_one) = ask(
                lab, certificates, [{"path": f"/live.m3u8{query}"} for query in ("?_HLS_msn=102", "?x=1", "?_HLS_msn=103")]
            )
            ttl = [int(reply.field("cache-status")[-1].rpartition("ttl=")[2]) for reply in (again, plain)]
            assert ttl[0] <= 10 < ttl[1]
            assert next_one.status == 200 and origin.seen[-1] == "/live.m3u8?_HLS_msn=103"
        finally:
            nginx.kill()


def test_responses_go_at_their_rate(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    content = os.urandom(1 << 20)
    for name in ("slow.m4s", "fast.m4s"):
        (root / name).write_bytes(content)
    rule = '[[site.rule]]\npath = "/slow*"\nlimit_rate = "512KiB"\nlimit_rate_after = "256KiB"\ncmcd_rtp = true\n'
    lab = make_lab()
    server = make_server(lab, mode="udp", root=root, site=rule)
    server.wait_tcp([address(lab.server["ipv4"])])
    asked = "cmcd-status: rtp=3000"

    def timed(get) -> float:
        start = time.monotonic()
        get()
        return time.monotonic() - start

    def over_h3(path: str, *headers: str) -> None:
        fields = [header.split(": ", 1) for header in headers]
        (reply,) = ask(lab, certificates, [{"path": path, "headers": fields}])
        assert (reply.status, reply.bytes) == (200, len(content))

    def over_tcp(version: str, path: str, *headers: str) -> None:
        more = [word for header in headers for word in ("-H", header)]
        assert curl(lab, certificates, version, path, *more) == (200, content)

    # 768 KiB at 512 KiB/s, an eighth of a second of which goes with the burst; with `rtp` at 375 kB/s.
    for headers, least in (((), 1.3), ((asked,), 1.9)):
        assert timed(lambda h=headers: over_h3("/slow.m4s", *h)) >= least
        for version in ("1.1", "2"):
            assert timed(lambda v=version, h=headers: over_tcp(v, "/slow.m4s", *h)) >= least
    over_h3("/fast.m4s", asked)
    # One that is slow holds up no other of its connection.
    replies = ask(lab, certificates, [{"path": "/slow.m4s"}, {"path": "/fast.m4s"}], at_once=2)
    assert [(reply.status, reply.bytes) for reply in replies] == [(200, len(content))] * 2
