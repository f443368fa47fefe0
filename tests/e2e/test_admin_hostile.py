"""Strangers at the admin listener of a server: silent, slow, many. Beside them a transfer and a scrape that go on."""

import contextlib
import socket
import time
from pathlib import Path

import pytest
from harness.namespace import run_inside
from harness.paths import LIMIT
from harness.server import ADMIN, Server
from harness.transfer import transfer

LIMITS = {"max_connections": "16", "header_timeout": '"2s"', "write_timeout": '"2s"'}


def connections(server: Server, count: int, said: bytes = b"") -> list[socket.socket]:
    """Connections to the admin listener that have said so much."""

    def connect() -> list[socket.socket]:
        made = []
        for _ in range(count):
            made.append(socket.create_connection(ADMIN, LIMIT))
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made[-1].sendall(said)
        return made

    return run_inside(server.lab.server_namespace, connect)


def drip(connection: socket.socket, what: bytes) -> bool:
    """Sends it byte by byte. Whether all of it was taken."""
    for at in range(len(what)):
        try:
            connection.send(what[at : at + 1])
        except OSError:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_the_admin_listener_bears_strangers(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab()
    server = make_server(lab, mode=mode, more={"admin": LIMITS})
    with transfer(server, certificates) as under_way:
        # More than there are places: who comes is heard all the same.
        silent = connections(server, 200)
        assert server.ask("/healthz") == (200, "ok\n")
        metrics = server.metrics()
        assert metrics.sum("admin_connections") <= 16
        assert metrics.sum("admin_displaced_total") >= 184
        under_way.await_more("bytes", "bytes_sent_total", 1_000_000)
        # A head that never ends, and one that asks again and again and takes nothing.
        (slow,) = connections(server, 1)
        assert not drip(slow, b"GET /metrics HTTP/1.1\r\nhost: " + b"a" * 1000)
        before = server.wait_for("those before gone", lambda m: m.sum("admin_connections") == 1).sum("admin_timeouts_total")
        greedy = connections(server, 4, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n" * 2000)
        server.wait_for("cut off", lambda m: m.sum("admin_timeouts_total") >= before + len(greedy))
        under_way.await_more("bytes", "bytes_sent_total", 1_000_000)
        for one in (*silent, *greedy):
            with contextlib.suppress(OSError):
                one.close()
        server.wait_for("all gone", lambda m: m.sum("admin_connections") == 1)
