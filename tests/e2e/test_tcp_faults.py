"""HTTP over TCP when something is short: descriptors, clients that read, an origin's address. And reloads under load."""

import hashlib
import http.client
import re
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients, origins
from harness.fanout import descriptors
from harness.lab import Lab
from harness.namespace import run_inside
from harness.origins import wait
from harness.paths import BINARY, HOST, LIMIT, LONG_CLIP, PORT, run
from harness.server import Server, address

MIB = 1 << 20
# What the server may have open at most, and what comes to have more.
DESCRIPTORS, CROWD = 160, 400
# accept.rs rests for this long when it gets no descriptor.
REST = 0.05


class Clients:
    """Connections from the client's namespace, with a clock that starts with them."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.sockets: list[socket.socket] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE

    def connect(self, window: int | None = None) -> socket.socket:
        """One of TCP alone; with a receive buffer of `window` bytes."""

        def make() -> socket.socket:
            made = socket.socket()
            made.settimeout(LIMIT)
            if window:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
            made.connect((self.lab.server["ipv4"], PORT))
            return made

        self.sockets.append(run_inside(self.lab.client_namespace, make))
        return self.sockets[-1]

    def secure(self, window: int | None = None, protocol: str = "http/1.1") -> ssl.SSLSocket:
        """One with TLS."""
        self.context.set_alpn_protocols([protocol])
        plain = self.connect(window)
        self.sockets.remove(plain)
        made = self.context.wrap_socket(plain, server_hostname=HOST)
        self.sockets.append(made)
        return made

    def close(self) -> None:
        """Ends all."""
        for one in self.sockets:
            one.close()
        self.sockets = []


@pytest.fixture
def connections() -> Iterator[Callable[[Lab], Clients]]:
    """Makes clients whose connections end with the test."""
    made: list[Clients] = []

    def make(lab: Lab) -> Clients:
        made.append(Clients(lab))
        return made[-1]

    yield make
    for one in made:
        one.close()


def request(path: str) -> bytes:
    """A GET of HTTP/1.1."""
    return f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()


def answer(connection: ssl.SSLSocket, path: str) -> tuple[int, bytes]:
    """Status and body of one request on a connection."""
    connection.sendall(request(path))
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


def accept_warnings(server: Server) -> int:
    """Lines about connections that were not accepted."""
    return server.log().count("accept failed")


def test_without_descriptors_those_who_are_there_go_on_and_others_come_later(
    make_lab, make_server, connections, certificates: Path
) -> None:
    lab = make_lab()
    limit = f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"
    # Those who come say nothing, and stay until they have to make room.
    server = make_server(lab, mode="udp", prefix=("prlimit", limit), more={"tcp": {"handshake_timeout": '"1h"'}})
    server.expect("Too many open files")
    us = connections(lab)
    slow = us.secure()
    slow.sendall(request("/long.mp4"))
    response = http.client.HTTPResponse(slow)
    response.begin()
    assert response.status == 200
    digest = hashlib.sha256(response.read(MIB))
    started = time.monotonic()
    crowd = connections(lab)
    for _ in range(CROWD):
        crowd.connect()
    # All that is left is taken; places change hands from then on, and there is no more than one line a second.
    server.wait_log("accept failed")
    wait("every descriptor is taken", lambda: descriptors(server.process.pid) >= DESCRIPTORS - 2)
    while piece := response.read(MIB):
        digest.update(piece)
    assert digest.hexdigest() == clients.sha256(LONG_CLIP), "one that was there goes on"
    lines, elapsed = accept_warnings(server), time.monotonic() - started
    assert lines <= elapsed + 2, f"{lines} lines in {elapsed} s"
    crowd.close()
    wait("descriptors are given back", lambda: descriptors(server.process.pid) < DESCRIPTORS // 2)
    late = us.secure()
    assert answer(late, "/small.txt")[0] == 200
    (third,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/small.txt"])
    assert third.status == 200
    elapsed = time.monotonic() - started
    refused = server.metrics().sum("tcp_refused_total", reason="accept")
    assert 0 < refused <= elapsed / REST + 2, f"it rests between two attempts: {refused} in {elapsed} s"
    server.wait_for("the crowd is gone", lambda m: m.sum("tcp_connections") <= 2)


def resident(pid: int) -> int:
    """Bytes of anonymous memory of a process."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
def test_clients_that_read_nothing_hold_little_and_not_for_ever(
    make_lab, make_server, connections, protocol: str
) -> None:
    lab = make_lab()
    more = {"tcp": {"response_timeout": '"3s"', "send_window": '"256KiB"'}}
    server = make_server(lab, mode="udp", more=more)
    us = connections(lab)
    assert answer(us.secure(), "/long.mp4")[0] == 200
    before = resident(server.process.pid)
    few = 40
    for _ in range(few):
        one = us.secure(4096, protocol)
        if protocol == "h2":
            # Windows as large as can be, so that TCP alone holds it up.
            window = b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\0\0\x04\x08\0\0\0\0\0\x7f\x00\x00\x00"
            one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + window)
            fields = ((":method", "GET"), (":scheme", "https"), (":authority", HOST), (":path", "/long.mp4"))
            section = b"".join(bytes([0, len(n)]) + n.encode() + bytes([len(v)]) + v.encode() for n, v in fields)
            for stream in range(1, 41, 2):
                head = len(section).to_bytes(3, "big") + b"\x01\x05" + stream.to_bytes(4, "big")
                one.sendall(head + section)
        else:
            one.sendall(request("/long.mp4") * 20)
    server.wait_for("they have asked", lambda m: m.sum("tcp_requests_active") >= few)
    most = resident(server.process.pid)
    server.wait_for("they are ended", lambda m: m.sum("tcp_connections") <= 1)
    grown = max(most, resident(server.process.pid)) - before
    assert grown < few * MIB, f"{grown} bytes for {few} connections"
    metrics = server.metrics()
    assert metrics.sum("tcp_refused_total", reason="response-timeout") >= few
    assert metrics.sum("tcp_response_bytes") == 0


def test_reloads_of_everything_lose_no_request(
    make_lab, make_server, connections, certificates: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    current = shutil.copytree(certificates, tmp_path / "current")
    other = tmp_path / "other"
    run([BINARY, "cert", "--host", HOST, "--out", other])
    server = make_server(lab, mode="udp", certificates=current)
    host = lab.server["ipv4"]
    is_over, rounds, faults = threading.Event(), dict.fromkeys(("h1", "h2", "h3", "fresh"), 0), []

    def again(name: str, work: Callable[[], None]) -> threading.Thread:
        """Does it over and over until it fails, or the reloads are done."""

        def loop() -> None:
            try:
                while not is_over.is_set():
                    work()
                    rounds[name] += 1
            except BaseException as fault:  # told below
                faults.append(f"{name}, after {rounds[name]} rounds: {fault!r}")

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    def h2load(*more: str) -> Callable[[], None]:
        words = ["h2load", "-n", "400", "-c", "4", *more, f"https://{host}:{PORT}/small.txt"]

        def work() -> None:
            done = run(lab.inside("client", *words))
            assert "400 succeeded, 0 failed, 0 errored, 0 timeout" in done and "400 2xx" in done, done

        return work

    def h3() -> None:
        # It trusts both roots.
        answers = clients.fetch(lab, "quicgo", address(host), trusted, ["/small.txt"] * 50)
        assert [one.status for one in answers] == [200] * 50

    def fresh() -> None:
        us = connections(lab)
        assert answer(us.secure(), "/small.txt")[0] == 200
        us.close()

    trusted = tmp_path / "trusted"
    trusted.mkdir()
    (trusted / "ca.pem").write_bytes((certificates / "ca.pem").read_bytes() + (other / "ca.pem").read_bytes())
    threads = [
        again("h2", h2load("-m", "10")), again("h1", h2load("--h1")), again("h3", h3), again("fresh", fresh),
    ]
    try:
        reloads = 0
        # At least so many, and until each of them has gone on behind one.
        while (reloads < 6 or min(rounds.values()) < 3) and not faults:
            source = (other, certificates)[reloads % 2]
            for name in ("key.pem", "cert.pem"):
                shutil.copy(source / name, current / f"{name}.new")
            for name in ("key.pem", "cert.pem"):
                (current / f"{name}.new").rename(current / name)
            server.config.write_text(server.settings.text() + ("hidden = true\n" if reloads % 2 else ""))
            server.signal(signal.SIGHUP)
            reloads += 1
            server.wait_log("reload: done", reloads)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(LIMIT)
    assert not faults, f"{faults}\n{server.log()}"
    metrics = server.metrics()
    assert metrics.sum("tcp_responses_total", end="incomplete") == 0
    assert metrics.drops().get("expressway_tcp_refused_total{reason=connections}", 0) == 0


def test_an_origin_that_moves_is_found_at_its_new_address(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    lab, hosts = make_lab(), tmp_path / "hosts"

    def lead_to(place: str) -> None:
        hosts.write_text(f"127.0.0.1 localhost\n{place}")

    def said() -> str:
        (reply,) = origins.ask(lab, certificates, [{"path": "/"}])
        assert reply.status == 200, reply
        return reply.body.decode()

    servers = "".join(
        f"server {{ listen {place}:8001; location / {{ return 200 '{place}'; }} }}\n"
        for place in ("127.0.0.1", "127.0.0.2")
    )
    nginx = origins.nginx(lab, tmp_path / "nginx", 8001, servers)
    try:
        lead_to("127.0.0.1 origin.test\n")
        move = ("unshare", "--mount", "sh", "-c", 'mount --bind "$1" /etc/hosts && shift && exec "$@"', "sh", str(hosts))
        origin = ['[[origin]]', 'name = "app"', 'servers = ["http://origin.test:8001"]', 'resolve = "1s"', ""]
        server = make_server(lab, mode="udp", root=None, site='origin = "app"\n', arrays=origin, prefix=move)
        assert said() == "127.0.0.1"
        lead_to("127.0.0.2 origin.test\n")
        wait("the new address", lambda: said() == "127.0.0.2")
        # A name that nobody knows any more changes nothing.
        lead_to("")
        server.wait_log("origin.test")
        assert said() == "127.0.0.2"
        lead_to("127.0.0.1 origin.test\n")
        wait("the first address again", lambda: said() == "127.0.0.1")
    finally:
        nginx.kill()
