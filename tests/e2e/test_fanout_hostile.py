"""Strangers at the listeners of a fan-out: slow, silent, many, loud. Beside them a subscriber that must get everything."""

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.fanout import TCP_PORT, Fanout, Sender, Subscriber, descriptors, subscribe
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import HOST, LIMIT
from harness.server import address
from harness.threads import threads
from harness.websocket import WebSocket, client_frame

TLS_PORT, WS_PORT, WSS_PORT = 9001, 9002, 9003
REQUEST = b"GET /feed HTTP/1.1\r\nHost: " + b"a" * 4000


@pytest.fixture
def all_listeners(make_fanout, certificates: Path) -> Callable[..., Fanout]:
    """Starts a fan-out with a listener for each protocol."""

    def make(lab: Lab, *flags: str, **options) -> Fanout:
        host = lab.server["ipv4"]
        listeners = [word for flag, port in (("--tls", TLS_PORT), ("--ws", WS_PORT), ("--wss", WSS_PORT))
                 for word in (flag, address(host, port))]
        identity = ("--certificate", str(certificates / "cert.pem"), "--private-key", str(certificates / "key.pem"))
        return make_fanout(lab, *listeners, *identity, *flags, **options)

    return make


@contextlib.contextmanager
def served(lab: Lab, fanout: Fanout) -> Iterator[None]:
    """While something happens a subscriber gets a feed of 500 datagrams a second, whole and in order."""
    (subscriber,) = subscribe(lab, fanout)
    sender, over = Sender(lab, lab.server["ipv4"]), threading.Event()
    faults: list[BaseException] = []

    def feed() -> None:
        try:
            while not over.is_set():
                subscriber.read_to(sender.send(10))
                over.wait(0.02)
        except BaseException as fault:  # told below
            faults.append(fault)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LIMIT)
    assert not faults, faults
    assert not thread.is_alive() and not subscriber.gaps
    subscriber.close()


def connections(lab: Lab, port: int, count: int, source: str = "") -> list[socket.socket]:
    """Connections from the client, or from another address of its."""

    def connect() -> list[socket.socket]:
        return [socket.create_connection((lab.server["ipv4"], port), LIMIT, (source, 0)) for _ in range(count)]

    return run_inside(lab.client_namespace, connect)


def ended(one: socket.socket) -> bool:
    """Whether the other side has ended a connection."""
    one.setblocking(False)
    try:
        return one.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def tls_hello(certificates: Path) -> bytes:
    """A ClientHello."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    session = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return out.read()


@pytest.mark.parametrize("port", [TLS_PORT, WS_PORT, WSS_PORT], ids=["tls", "ws", "wss"])
def test_who_sends_a_handshake_byte_by_byte_is_ended_in_time(
    make_lab, all_listeners, certificates: Path, port: int
) -> None:
    lab = make_lab()
    fanout = all_listeners(lab, "--handshake-timeout", "3s")
    with served(lab, fanout):
        drips = tls_hello(certificates) if port != WS_PORT else REQUEST
        slow, silent = connections(lab, port, 20), connections(lab, port, 20)
        # Well within any time between two bytes, and far from the end of it within the whole.
        for at in range(len(drips)):
            left = [one for one in slow if not ended(one)]
            if not left:
                break
            for one in left:
                with contextlib.suppress(OSError):
                    one.send(drips[at : at + 1])
            time.sleep(0.05)
        assert not left, "the last byte came before the end"
        fanout.wait_for("all ended", lambda m: m.sum("fanout_refused_handshake_timeout_total") == 40)
        assert all(ended(one) for one in silent)
        assert fanout.metrics().sum("fanout_handshakes") == 0


@pytest.mark.parametrize("port", [TLS_PORT, WS_PORT], ids=["tls", "ws"])
def test_silent_crowds_keep_nobody_out(make_lab, all_listeners, certificates: Path, port: int) -> None:
    lab = make_lab()
    # Many addresses, each with its share, and more than there may be of all.
    flags = ("--max-handshakes", "60", "--max-handshakes-per-address", "20", "--max-subscribers", "64")
    fanout = all_listeners(lab, *flags, "--handshake-timeout", "1h")
    others = [f"198.18.0.{number}" for number in range(101, 105)]
    for other in others:
        lab.run("client", "ip", "address", "add", f"{other}/24", "dev", "client0")
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    with served(lab, fanout):
        crowd = [one for other in others for one in connections(lab, port, 30, other)]
        fanout.wait_for("the crowd", lambda m: m.sum("fanout_handshakes") == 60)
        fanout.wait_for("the rest refused", lambda m: m.sum("fanout_refused_busy_total") >= 60)
        deadline = time.monotonic() + LIMIT
        while True:
            assert time.monotonic() < deadline, fanout.log()
            # Those that stay are replaced as fast as they end.
            crowd = [one for one in crowd if not ended(one)]
            crowd += connections(lab, port, 60 - min(60, len(crowd)), others[0])
            try:
                if port == WS_PORT:
                    welcome = WebSocket(lab, lab.server["ipv4"], port)
                else:
                    welcome = Subscriber(lab, lab.server["ipv4"], port)
                    welcome.socket = context.wrap_socket(welcome.socket, server_hostname=HOST)
                welcome.frame()
                break
            except (OSError, EOFError):
                time.sleep(0.1)
        assert fanout.metrics().sum("fanout_refused_displaced_total") > 0
        # The feed of one who came to the other listener goes on.
        assert welcome.frame()


def loud(kind: str) -> bytes:
    """What a WebSocket subscriber sends at full speed."""
    return {
        "pings": client_frame(0x89, b"") * 1000,
        "fragments": client_frame(0x02, b"") + client_frame(0x00, b"") * 1000 + client_frame(0x80, b""),
        "huge-frame": b"\x82\xff" + struct.pack(">Q", 1 << 62) + bytes(65536),
        "data": client_frame(0x82, bytes(125)) * 500,
        "garbage": b"\xff" * 65536,
    }[kind]


@pytest.mark.parametrize("port", [WS_PORT, WSS_PORT], ids=["ws", "wss"])
@pytest.mark.parametrize("kind", ["pings", "fragments", "huge-frame", "data", "garbage"])
def test_a_loud_subscriber_is_cut_off(make_lab, all_listeners, certificates: Path, kind: str, port: int) -> None:
    lab = make_lab()
    fanout = all_listeners(lab)
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    tls = context if port == WSS_PORT else None
    with served(lab, fanout):
        noise = loud(kind)
        for _ in range(5):
            one = WebSocket(lab, lab.server["ipv4"], port, tls=tls)
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    one.socket.sendall(noise)
                pytest.fail("all of it was taken")
        reason = "protocol" if kind == "garbage" else "flooded"
        fanout.wait_for("all cut off", lambda m: m.sum("fanout_disconnects_total", reason=reason) == 5)


def s_client(lab: Lab, certificates: Path, version: str, commands: str) -> str:
    """What openssl's client says that is given commands of its own (s_client(1), CONNECTED COMMANDS)."""
    words = ["openssl", "s_client", "-connect", address(lab.server["ipv4"], TLS_PORT), f"-{version}",
             "-CAfile", certificates / "ca.pem", "-servername", HOST]
    line = lab.inside("client", *words)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "bufsize": 0}
    with subprocess.Popen(line, **pipes) as client:
        assert client.stdin and client.stdout
        said = b""
        try:
            while b"Verify return code" not in said:
                said += (part := os.read(client.stdout.fileno(), 65536))
                assert part, said
            for command in commands:
                client.stdin.write(command.encode() + b"\n")
                time.sleep(0.2)
            # It reads on until the other side ends, or until it is told to end.
            client.stdin.write(b"Q\n")
            while part := os.read(client.stdout.fileno(), 65536):
                said += part
        except BrokenPipeError:
            pass
        finally:
            client.kill()
    return said.decode(errors="replace")


def test_renegotiation_and_key_updates(make_lab, all_listeners, certificates: Path) -> None:
    lab = make_lab()
    fanout = all_listeners(lab)
    with served(lab, fanout):
        # Renegotiation is refused, which ends the connection.
        s_client(lab, certificates, "tls1_2", "R")
        fanout.wait_for("its end", lambda m: m.sum("fanout_disconnects_total", reason="protocol") == 1)
        # New keys, and the answer to the wish for some, are part of TLS 1.3.
        said = s_client(lab, certificates, "tls1_3", "KkK")
        assert "KEYUPDATE" in said and "error" not in said.lower().replace("verify error", ""), said
        metrics = fanout.wait_for("its end", lambda m: m.sum("fanout_disconnects_total") == 2)
        assert metrics.sum("fanout_disconnects_total", reason="protocol") == 1


def test_connections_that_are_reset_leave_nothing(make_lab, all_listeners, certificates: Path) -> None:
    lab = make_lab()
    fanout = all_listeners(lab)
    with served(lab, fanout):
        opened = descriptors(fanout.process.pid)
        hello, host = tls_hello(certificates), lab.server["ipv4"]

        def storm() -> None:
            for number in range(3000):
                port, said = ((TCP_PORT, b""), (TLS_PORT, hello), (WS_PORT, REQUEST))[number % 3]
                one = socket.create_connection((host, port), LIMIT)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(OSError):
                    one.send(said[: number % 700])
                one.close()

        run_inside(lab.client_namespace, storm)

        def all_gone(metrics) -> bool:
            gone = metrics.sum("fanout_abandoned_total") + metrics.sum("fanout_disconnects_total")
            return gone == 3000 and metrics.sum("fanout_subscribers") == 1

        metrics = fanout.wait_for("all gone", all_gone)
        assert metrics.sum("fanout_handshakes") == 0
        assert descriptors(fanout.process.pid) <= opened + 1


def door_seconds(fanout: Fanout) -> float:
    """CPU time of the accepting thread, by the scheduler's account."""
    (acceptor,) = threads(fanout.process.pid, "fanout-acceptor")
    return int((acceptor / "schedstat").read_text().split()[0]) / 1e9


def test_without_descriptors_the_door_rests(make_lab, make_fanout) -> None:
    lab = make_lab()
    # The crowd reads nothing: when it is given up there are descriptors for the operator.
    fanout = make_fanout(lab, "--stall", "2s", prefix=("prlimit", "--nofile=40:40"))
    with served(lab, fanout):
        crowd = connections(lab, TCP_PORT, 60)
        fanout.wait_log("RLIMIT_NOFILE")
        before, turned_away = door_seconds(fanout), fanout.metrics().sum("fanout_refused_descriptors_total")
        for _ in range(10):
            crowd += connections(lab, TCP_PORT, 40)
            time.sleep(0.2)
        # It wakes some twenty times a second, for ten turned away at most each; a spin would be two seconds.
        assert door_seconds(fanout) - before < 0.5
        # It stands back, so on a busy machine it takes its time.
        fanout.wait_for("more turned away", lambda m: m.sum("fanout_refused_descriptors_total") > turned_away)
    nice = [int((task / "stat").read_text().rsplit(") ", 1)[1].split()[16])
            for task in threads(fanout.process.pid, "fanout-acceptor")]
    assert nice == [10], "it does not stand back for those that send"

