"""What sites keep of an nginx's responses: in memory and on disk, over restarts and the end of the origin, and purged."""

import contextlib
import json
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from harness import clients, origins
from harness.lab import Lab
from harness.origins import ask
from harness.namespace import run_inside
from harness.paths import HOST, LIMIT
from harness.paths import PORT as AT
from harness.server import Server

PORT = 8001

STATIC = """
server {{
  listen 127.0.0.1:{port}; root {root}; access_log {log}; add_header cache-control "{control}";
  add_header surrogate-key "all clips"; etag on;
}}
"""


def static(processes, lab: Lab, folder: Path, root: Path, control: str = "max-age=600") -> Path:
    """Starts an nginx that serves the clips. Its access log."""
    log = folder / "asked.log"
    servers = STATIC.format(port=PORT, root=root, log=log, control=control)
    processes(origins.nginx(lab, folder / "nginx", PORT, servers))
    return log


def asked(log: Path) -> int:
    """Requests that the origin got."""
    return len(log.read_text().splitlines()) if log.exists() else 0


def serve(make_server, lab: Lab, disk: Path | None = None, cache: str = "true", **settings) -> Server:
    """A server whose one site is cached."""
    more = settings.pop("more", {})
    if disk:
        more["cache"] = {"disk": f'"{disk}"', "disk_size": '"64MiB"'}
    site = f'origin = "http://127.0.0.1:{PORT}"\ncache = {cache}\n'
    server = make_server(lab, mode="udp", root=None, site=site, more=more, **settings)
    server.expect("out of service", "an origin's name")
    return server


def status(reply: origins.Reply) -> str:
    """What the cache did."""
    return reply.field("cache-status")[-1].removeprefix("expressway; ")


def test_a_clip_is_fetched_once_in_slices(
    make_lab, make_server, processes, certificates: Path, root: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    log = static(processes, lab, tmp_path, root)
    access = tmp_path / "access.log"
    server = serve(make_server, lab, more={"log": {"access": f'"{access}"'}})
    size = (root / "long.mp4").stat().st_size
    whole = clients.sha256(root / "long.mp4")
    (part,) = ask(lab, certificates, [{"path": "/long.mp4", "headers": [["range", f"bytes={size - 1}-"]]}])
    assert (part.status, part.bytes) == (206, 1)
    assert asked(log) <= 2, "the slice, and the first one for the length"
    got = ask(lab, certificates, [{"path": "/long.mp4", "count": 8}], at_once=8)
    assert [(reply.status, reply.sha256) for reply in got] == [(200, whole)] * 8
    slices = -(-size // (1 << 20))
    assert asked(log) <= slices + 1
    before = asked(log)
    (again,) = ask(lab, certificates, [{"path": "/long.mp4"}])
    assert status(again).startswith("hit") and again.sha256 == whole and again.field("age")
    etag = again.field("etag")[0]
    requests = [
        {"path": "/long.mp4", "headers": [["if-none-match", etag]]},
        {"path": "/long.mp4", "headers": [["range", "bytes=1000-1999"]]},
        {"path": "/long.mp4", "headers": [["range", "bytes=0-1,5-6"]]},
        {"path": "/long.mp4", "headers": [["range", "bytes=99999999999-"]]},
        {"method": "HEAD", "path": "/long.mp4"},
    ]
    got = ask(lab, certificates, requests)
    assert [reply.status for reply in got] == [304, 206, 206, 416, 200]
    assert got[1].sha256 == clients.sha256(root / "long.mp4", slice(1000, 2000))
    assert asked(log) == before
    metrics = server.metrics()
    assert metrics.sum("cache_hits_total") >= 6 and metrics.sum("cache_fill_bytes_total") == size
    server.stop()
    words = {json.loads(line)["cache"] for line in access.read_text().splitlines()}
    assert "hit" in words and words <= {"hit", "miss", "partial", "collapsed"}


def test_what_is_on_disk_outlives_server_and_origin(
    make_lab, make_server, processes, certificates: Path, root: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    log = static(processes, lab, tmp_path, root)
    disk = tmp_path / "cache"
    disk.mkdir()
    server = serve(make_server, lab, disk)
    whole = clients.sha256(root / "clip.mp4")
    (first,) = ask(lab, certificates, [{"path": "/clip.mp4"}])
    assert first.sha256 == whole
    server.wait_for("it is written", lambda metrics: metrics.sum("cache_disk_queued_bytes") == 0)
    server.process.kill()
    server.wait()
    before = asked(log)
    server = serve(make_server, lab, disk)
    (again,) = ask(lab, certificates, [{"path": "/clip.mp4"}])
    assert status(again).startswith("hit") and again.sha256 == whole
    assert asked(log) == before
    assert server.metrics().sum("cache_disk_reads_total") > 0


def test_purges(make_lab, make_server, processes, certificates: Path, root: Path, tmp_path: Path) -> None:
    lab = make_lab()
    log = static(processes, lab, tmp_path, root)
    server = serve(make_server, lab)
    assert not status(ask(lab, certificates, [{"path": "/small.txt"}])[0]).startswith("hit")
    assert status(ask(lab, certificates, [{"path": "/small.txt"}])[0]).startswith("hit")
    for order in [
        {"key": "clips"},
        {"prefix": f"https://edge.test:{AT}/"},
        {"url": f"https://edge.test:{AT}/small.txt"},
        {"key": "all", "soft": True},
    ]:
        code, told = server.ask("/purge", json.dumps(order))
        assert code == 200 and json.loads(told)["objects"] == 1, (order, told)
        before = asked(log)
        (reply,) = ask(lab, certificates, [{"path": "/small.txt"}])
        assert reply.status == 200 and not status(reply).startswith("hit"), order
        assert asked(log) == before + 1
    assert server.ask("/purge", "{}")[0] == 400
    assert server.ask("/purge", json.dumps({"url": "/x"}))[0] == 400


def test_stale_objects_outlive_the_origin(
    make_lab, make_server, processes, certificates: Path, root: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    servers = STATIC.format(port=PORT, root=root, log=tmp_path / "asked.log", control="max-age=0")
    origin = processes(origins.nginx(lab, tmp_path / "nginx", PORT, servers))
    serve(make_server, lab, cache='{ stale_if_error = "1h" }')
    (first,) = ask(lab, certificates, [{"path": "/small.txt"}])
    (second,) = ask(lab, certificates, [{"path": "/small.txt"}])
    assert status(second) == "fwd=stale; fwd-status=304"
    origin.kill()
    (third,) = ask(lab, certificates, [{"path": "/small.txt"}])
    assert third.status == 200 and third.body == first.body and "stale-if-error" in status(third)


class Halting:
    """An origin that answers each request with the first part of a body, and with the rest when it is told to."""

    def __init__(self, listener: socket.socket, body: bytes, first: int) -> None:
        self.body, self.first, self.asked = body, first, 0
        self.listener, self.go_on = listener, threading.Event()
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.threads.append(threading.Thread(target=self.answer, args=(connection,)))
                self.threads[-1].start()

    def answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                if line.strip():
                    continue
                self.asked += 1
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(self.body)}\r\ncache-control: max-age=600\r\n\r\n"
                connection.sendall(head.encode() + self.body[: self.first])
                assert self.go_on.wait(LIMIT)
                connection.sendall(self.body[self.first :])

    def end(self) -> None:
        self.go_on.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.threads[0].join(LIMIT)


@contextlib.contextmanager
def halting(lab: Lab, body: bytes, first: int) -> Iterator[Halting]:
    """Such an origin in the server's namespace."""
    origin = Halting(run_inside(lab.server_namespace, lambda: socket.create_server(("127.0.0.1", PORT))), body, first)
    try:
        yield origin
    finally:
        origin.end()


def test_a_thousand_clients_read_one_fetch_while_it_is_under_way(make_lab, make_server) -> None:
    lab, count, block = make_lab(), 1000, 256 << 10
    body = bytes(range(256)) * 1025
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4 * count), hard), hard))
    arrays = ["[[http]]", f'listen = "{lab.server["ipv4"]}:8080"', 'action = "serve"', ""]
    request = f"GET / HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n".encode()

    def connect() -> list[socket.socket]:
        return [socket.create_connection((lab.server["ipv4"], 8080), LIMIT) for _ in range(count)]

    def read(client: socket.socket, octets: int) -> bytes:
        """So many octets, or all that come."""
        got = bytearray()
        while len(got) < octets and (more := client.recv(octets - len(got))):
            got += more
        return bytes(got)

    with halting(lab, body, block) as origin, contextlib.ExitStack() as open_ones:
        server = serve(make_server, lab, arrays=arrays)
        clients = [open_ones.enter_context(client) for client in run_inside(lab.client_namespace, connect)]
        for client in clients:
            client.sendall(request)
        # Everybody has a part of it, and the origin has not sent the rest yet.
        began = [read(client, block // 2) for client in clients]
        assert origin.asked == 1 and not origin.go_on.is_set()
        assert server.metrics().sum("cache_collapsed_total") == count - 1
        origin.go_on.set()
        for client, first in zip(clients, began, strict=True):
            head, _, start = first.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and start + read(client, 2 * len(body)) == body
        assert origin.asked == 1
