"""One UDP feed to many subscribers, over a veth, with clients on ordinary sockets."""

import json
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from harness.browser import Browser
from harness.fanout import FEED_PORT, TCP_PORT, Fanout, Sender, Subscriber, descriptors, fanouts, subscribe
from harness.lab import Lab
from harness.paths import BINARY, CLIENTS, HOST, LIMIT
from harness.server import address

GROUPS = ("239.7.7.7", "ff15::7")


@pytest.fixture
def make_fanout(tmp_path: Path) -> Iterator[Callable[..., Fanout]]:
    """Starts fan-outs with len32 framing; at the end each that still runs has to stop cleanly."""
    with fanouts(tmp_path) as start:

        def make(lab: Lab, *flags: str, feed: str | None = None, prefix: tuple[str, ...] = (), ready: bool = True) -> Fanout:
            host = lab.server["ipv4"]
            words = ["--udp", address(feed or host, FEED_PORT), "--framing", "len32", *flags]
            if "--tcp" not in flags:
                words += ["--tcp", address(host, TCP_PORT)]
            fanout = start(lab, *words, prefix=prefix)
            return fanout.wait_ready() if ready else fanout

        yield make


def test_a_feed_reaches_all_subscribers_and_statistics_say_so(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--json")
    assert fanout.ready[0]["mode"] == "user" and "mode user: it sends" in fanout.log(), "auto says why"
    subscribers = subscribe(lab, fanout, count=5)
    sender = Sender(lab, lab.server["ipv4"])
    last = sender.send(500)
    for subscriber in subscribers:
        subscriber.read_to(last)
        assert not subscriber.gaps
    metrics = fanout.wait_for("all counted", lambda m: m.sum("fanout_sent_frames_total") == 2500)
    assert metrics.sum("fanout_datagrams_total") == 500
    assert metrics.sum("fanout_lag_bytes") == metrics.sum("fanout_lag_bytes_max") == 0
    assert metrics.sum("fanout_rtt_microseconds_sum") >= metrics.sum("fanout_rtt_microseconds_max") > 0
    assert metrics.sum("fanout_subscribers", protocol="tcp") == 5
    assert metrics.sum("rx_kernel_packets_total") >= 0
    fanout.signal(signal.SIGUSR1)
    deadline = time.monotonic() + LIMIT
    while fanout.output.count("\n") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    fanout.stop()
    ready, now, end = (json.loads(line) for line in fanout.output.splitlines())
    assert ready["ready"]["udp"] == address(lab.server["ipv4"], FEED_PORT)
    assert len(now["statistics"]["subscribers"]) == 5
    assert {one["datagrams"] for one in now["statistics"]["subscribers"]} == {500}
    assert end["statistics"]["disconnects"]["stopped"] == 5
    for subscriber in subscribers:
        assert subscriber.socket.recv(1) == b"", "no orderly end"


@pytest.mark.parametrize("mode", ["copy", "hybrid", "generic", "auto"])
def test_a_feed_by_af_xdp(make_lab, make_fanout, mode: str) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--io", mode)
    assert fanout.ready[0]["io"] == {"auto": "hybrid"}.get(mode, mode)
    (subscriber,) = subscribe(lab, fanout)
    sender = Sender(lab, lab.server["ipv4"])
    for _ in range(10):
        subscriber.read_to(sender.send(100))
    assert not subscriber.gaps
    metrics = fanout.wait_for("packets by AF_XDP", lambda m: m.sum("rx_express_packets_total") >= 1000)
    assert metrics.sum("xdp_packets_total", verdict="redirect") >= 1000
    fanout.stop()
    assert "xdp" not in lab.run("server", "ip", "link", "show", "server0"), "an XDP program stayed"


def test_the_metrics_page_does_not_grow_with_subscribers(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab)
    series = {(sample.name, *sample.labels.items()) for sample in fanout.metrics().samples}
    subscribers = subscribe(lab, fanout, count=20)
    assert {(sample.name, *sample.labels.items()) for sample in fanout.metrics().samples} == series
    page = json.loads(fanout.ask("/subscribers")[1])["statistics"]
    peers = {one["peer"] for one in page["subscribers"]}
    assert peers == {address(*one.socket.getsockname()[:2]) for one in subscribers}


def test_top_shows_subscribers_and_who_has_half_gone(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab)
    stays, half = subscribe(lab, fanout, count=2)
    half.socket.shutdown(socket.SHUT_WR)
    fanout.wait_for("its half", lambda m: m.sum("fanout_subscribers_half_closed") == 1)
    last = Sender(lab, lab.server["ipv4"]).send(100)
    for subscriber in (stays, half):
        subscriber.read_to(last)
    top = ("server", BINARY, "top", "--once", "--interval", "200ms")
    shown = json.loads(lab.run(*top, "--json"))
    assert shown["counters"]["datagrams"] == 100 and shown["mode"] == "user"
    assert [(one["datagrams"], one["lag_bytes"]) for one in shown["subscribers"]] == [(100, 0)] * 2
    assert [one["half_closed"] for one in shown["subscribers"]] == [False, True]
    assert all(one["rtt_seconds"] > 0 for one in shown["subscribers"])
    lines = lab.run(*top).splitlines()
    assert "subscribers 2" in lines[0] and lines[-1].endswith("(half-closed)"), lines
    # On a terminal it has a screen of its own, and gives it back.
    script = ("script", "-qec", f"timeout -s INT 1 {BINARY} top --interval 100ms; true", "/dev/null")
    screen = lab.run("server", *script)
    assert screen.startswith("\x1b[?1049h") and screen.endswith("\x1b[?1049l"), screen
    # Without a fan-out's page, what counts there is; without a process, a line that says so.
    fanout.stop()
    command = lab.inside("server", *top[1:])
    absent = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert absent.returncode == 1 and "--admin 127.0.0.1:9180: Connection refused" in absent.stderr
    command = lab.inside("server", *top[1:], "-i", "server0")
    interface = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert interface.returncode == 2 and "not interfaces" in interface.stderr


def join_source(lab: Lab) -> dict[str, str]:
    """The client's addresses, from which feeds come."""
    return {"239.7.7.7": lab.client["ipv4"], "ff15::7": lab.client["ipv6"]}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("source", [False, True], ids=["any-source", "source-specific"])
def test_a_multicast_feed(make_lab, make_fanout, group: str, source: bool) -> None:
    lab = make_lab()
    flags = ["--source", join_source(lab)[group]] if source else []
    fanout = make_fanout(lab, "--interface", "server0", *flags, feed=group)
    joined = lab.run("server", "cat", "/proc/net/mcfilter" if ":" not in group else "/proc/net/mcfilter6")
    assert bool(joined.count("\n") > 1) == source, joined
    (subscriber,) = subscribe(lab, fanout)
    sender = Sender(lab, group, interface="client0")
    subscriber.read_to(sender.send(100))
    assert not subscriber.gaps


def test_a_multicast_feed_survives_the_loss_of_its_interface(make_lab, make_fanout) -> None:
    lab = make_lab()
    lab.add_extra_link()
    fanout = make_fanout(lab, "--interface", "extra0", feed="239.7.7.7")
    (subscriber,) = subscribe(lab, fanout)
    subscriber.read_to(Sender(lab, "239.7.7.7", interface="extra1").send(10))
    lab.run("server", "ip", "link", "delete", "extra0")
    fanout.wait_log("multicast group lost")
    lab.add_extra_link()
    fanout.wait_for("joined anew", lambda m: m.sum("fanout_group_rejoins_total") == 1)
    # Subscribers were there all the time, and the feed goes on.
    sender = Sender(lab, "239.7.7.7", interface="extra1")
    sender.next = 10
    subscriber.read_to(sender.send(10))
    assert not subscriber.gaps
    assert fanout.metrics().sum("fanout_subscribers") == 1


def test_the_feed_pauses_the_link_goes_down_and_both_return(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab)
    (subscriber,) = subscribe(lab, fanout)
    sender = Sender(lab, lab.server["ipv4"])
    subscriber.read_to(sender.send(10))
    lab.run("server", "ip", "link", "set", "server0", "down")
    sender_numbers = sender.next
    lab.run("server", "ip", "link", "set", "server0", "up")
    lab.run("server", "ping", "-c", "1", "-w", "20", lab.client["ipv4"])
    assert sender.next == sender_numbers
    subscriber.read_to(sender.send(10))
    assert not subscriber.gaps
    assert fanout.metrics().sum("fanout_subscribers") == 1


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_thousand_subscribers_come_and_go(make_lab, make_fanout, threads: str) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--threads", threads, "--max-lag", "64KiB", "--send-buffer", "16KiB", "--ring", "1MiB")
    opened = descriptors(fanout.process.pid)
    host = lab.server["ipv4"]
    churn = lab.run(
        "client", sys.executable, CLIENTS / "fanout_churn.py", "--host", host, "--port", str(TCP_PORT),
        "--feed", host, "--feed-port", str(FEED_PORT),
    )
    report = json.loads(churn)
    assert not report["faults"], report["faults"][:10]
    assert report["refused"] == 0 and report["subscribers"] == 1000
    assert report["frames"] > 10_000, report
    # Who has left is gone, one and all, with what it held.
    sender = Sender(lab, host)

    def all_gone(metrics) -> bool:
        sender.send()
        return metrics.sum("fanout_subscribers") == 0

    metrics = fanout.wait_for("all gone", all_gone)
    assert metrics.sum("fanout_disconnects_total") == metrics.sum("fanout_accepted_total") == 1000
    assert metrics.sum("fanout_disconnects_total", reason="lag_bytes") == 0
    assert metrics.sum("fanout_datagrams_total") >= report["sent"]
    assert metrics.sum("rx_kernel_dropped_total") == 0
    assert descriptors(fanout.process.pid) <= opened + 1


def test_who_never_reads_delays_nobody(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--max-lag", "64KiB", "--send-buffer", "16KiB", "--ring", "1MiB", "--stall", "3s")
    readers, stalled = subscribe(lab, fanout, count=2), subscribe(lab, fanout, count=2)
    for subscriber in stalled:
        subscriber.expected = 0
    sender = Sender(lab, lab.server["ipv4"])
    while fanout.log().count("falls behind") < 2:
        last = sender.send(50)
        for reader in readers:
            reader.read_to(last)
    assert not readers[0].gaps and not readers[1].gaps
    last = sender.send(50)
    for reader in readers:
        reader.read_to(last)
    # One reads on, and is told what it missed; the other never does, and is gone in the end.
    stalled[0].read_to(last)
    assert sum(stalled[0].gaps) > 0

    def goes_on(metrics) -> bool:
        last = sender.send(20)
        for subscriber in (*readers, stalled[0]):
            subscriber.read_to(last)
        return metrics.sum("fanout_subscribers") == 3

    metrics = fanout.wait_for("the end of the other", goes_on)
    reasons = ("stalled", "timed_out")
    assert sum(metrics.sum("fanout_disconnects_total", reason=reason) for reason in reasons) == 1
    assert metrics.sum("fanout_skipped_frames_total") >= sum(stalled[0].gaps)


def test_killed_and_started_again(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab)
    (before,) = subscribe(lab, fanout)
    sender = Sender(lab, lab.server["ipv4"])
    before.read_to(sender.send(10))
    fanout.kill()
    with pytest.raises((EOFError, ConnectionResetError)):
        before.read_to(10)
    # The port is free again at once, with connections of the old process still closing.
    fanout.start()
    fanout.wait_ready()
    (after,) = subscribe(lab, fanout)
    after.read_to(sender.send(10))
    assert not after.gaps


def test_without_descriptors_newcomers_are_turned_away_and_subscribers_stay(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, prefix=("prlimit", "--nofile=40:40"))
    host = lab.server["ipv4"]
    sender = Sender(lab, host)
    subscribers, refused = [], 0
    while refused < 5:
        subscriber = Subscriber(lab, host)
        subscriber.socket.settimeout(0.3)
        try:
            refused += subscriber.socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionResetError:
            refused += 1
        except TimeoutError:
            subscriber.socket.settimeout(LIMIT)
            subscribers.append(subscriber)
            assert len(subscribers) < 60
    last = sender.send(100)
    for subscriber in subscribers:
        subscriber.read_to(last)
    fanout.wait_log("RLIMIT_NOFILE")
    # Room again: newcomers are welcome.
    for subscriber in subscribers[:10]:
        subscriber.close()
    deadline = time.monotonic() + LIMIT
    while True:
        sender.send()
        newcomer = Subscriber(lab, host)
        newcomer.socket.settimeout(1)
        try:
            newcomer.read_to(sender.send())
            break
        except (EOFError, ConnectionResetError, TimeoutError):
            assert time.monotonic() < deadline, fanout.log()


def test_tls_subscribers(make_lab, make_fanout, certificates: Path) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    tls = ("--certificate", str(certificates / "cert.pem"), "--private-key", str(certificates / "key.pem"))
    fanout = make_fanout(lab, "--tls", address(host, 9001), *tls, "--handshake-timeout", "500ms")
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    subscribers = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context.minimum_version = context.maximum_version = version
        subscriber = Subscriber(lab, host, 9001)
        subscriber.socket = context.wrap_socket(subscriber.socket, server_hostname=HOST)
        subscribers.append(subscriber)
    fanout.wait_for("the subscribers", lambda m: m.sum("fanout_subscribers") == 2)
    sender = Sender(lab, host)
    for subscriber in subscribers:
        subscriber.expected = 0
    for _ in range(20):
        last = sender.send(100)
        for subscriber in subscribers:
            subscriber.read_to(last)
    assert not any(subscriber.gaps for subscriber in subscribers)
    # Who does not speak TLS, and who says nothing.
    stranger, silent = Subscriber(lab, host, 9001), Subscriber(lab, host, 9001)
    stranger.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    fanout.wait_for("the refusals", lambda m: m.sum("fanout_refused_handshake_total") == 1)
    fanout.wait_for("the refusals", lambda m: m.sum("fanout_refused_handshake_timeout_total") == 1)
    assert silent.socket.recv(1) == b""
    fanout.stop()
    for subscriber in subscribers:
        assert subscriber.socket.recv(1) == b"", "no close_notify"


class WebSocket(Subscriber):
    """A WebSocket client by hand, that sees every frame as it is on the wire."""

    def __init__(self, lab: Lab, host: str, port: int, target: str = "/feed", origin: str | None = None) -> None:
        super().__init__(lab, host, port)
        more = f"Origin: {origin}\r\n" if origin else ""
        self.socket.sendall(
            f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._exactly(1)
        self.status = int(head.split()[1])
        self.controls: list[tuple[int, bytes]] = []

    def message(self) -> tuple[int, bytes]:
        """Opcode and payload of the next message."""
        first, second = self._exactly(2)
        assert first & 0xF0 == 0x80 and second < 127
        length = second if second < 126 else int.from_bytes(self._exactly(2), "big")
        return first & 0x0F, self._exactly(length)

    def frame(self) -> bytes | int:
        while True:
            opcode, content = self.message()
            if opcode == 2:
                return content
            if opcode == 1:
                return json.loads(content)["gap"]
            self.controls.append((opcode, content))

    def send(self, first: int, content: bytes, mask: bytes = b"\1\2\3\4") -> None:
        """A client's frame, of fewer than 126 bytes."""
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(content))
        self.socket.sendall(bytes([first, 0x80 | len(content)]) + mask + masked)


def test_websocket_subscribers(make_lab, make_fanout) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    fanout = make_fanout(lab, "--ws", address(host, 9002))
    sender = Sender(lab, host)
    sender.send(50)
    fanout.wait_for("the datagrams", lambda m: m.sum("fanout_datagrams_total") == 50)
    subscriber, replay = WebSocket(lab, host, 9002), WebSocket(lab, host, 9002, "/feed?start=last:5")
    fanout.wait_for("the subscribers", lambda m: m.sum("fanout_subscribers") == 2)
    subscriber.send(0x89, b"ping")
    last = sender.send(300)
    replay.expected = 45
    subscriber.read_to(last)
    replay.read_to(last)
    while not subscriber.controls:
        subscriber.read_to(sender.send())
    assert subscriber.controls == [(10, b"ping")]
    subscriber.send(0x88, struct.pack(">H", 1000))
    while (got := subscriber.message())[0] != 8:
        pass
    assert got == (8, struct.pack(">H", 1000))
    assert subscriber.socket.recv(1) == b""
    # A frame without a mask breaks the protocol; a page of another origin may not subscribe.
    replay.socket.sendall(b"\x82\x00")
    while (got := replay.message())[0] != 8:
        pass
    assert got[1][:2] == struct.pack(">H", 1002)
    assert WebSocket(lab, host, 9002, origin="https://elsewhere.test").status == 403
    assert WebSocket(lab, host, 9002, "/feed?start=never").status == 400
    metrics = fanout.wait_for("the refusal", lambda m: m.sum("fanout_refused_origin_total") == 1)
    assert metrics.sum("fanout_disconnects_total", reason="protocol") == 1
    # At the end the close frame says that the server goes.
    staying = WebSocket(lab, host, 9002)
    fanout.wait_for("the subscriber", lambda m: m.sum("fanout_subscribers") == 1)
    fanout.stop()
    opcode, content = staying.message()
    assert (opcode, content[:2]) == (8, struct.pack(">H", 1001))


def test_an_expired_certificate_is_warned_about(make_lab, make_fanout, tmp_path: Path) -> None:
    lab = make_lab()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    certificate = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    certificate = certificate.serial_number(1).not_valid_before(datetime(2000, 1, 1)).not_valid_after(datetime(2001, 1, 1))
    file, private = tmp_path / "old.pem", tmp_path / "old-key.pem"
    file.write_bytes(certificate.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*form))
    flags = ("--tls", address(lab.server["ipv4"], 9001), "--certificate", str(file), "--private-key", str(private))
    fanout = make_fanout(lab, *flags)
    assert "the certificate is expired: clients will refuse it" in fanout.log_file.read_text()


@pytest.mark.parametrize("protocol", ["tls", "ws"])
def test_a_slow_subscriber_of_any_protocol_gets_whole_datagrams(
    make_lab, make_fanout, certificates: Path, protocol: str
) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    tls = ("--certificate", str(certificates / "cert.pem"), "--private-key", str(certificates / "key.pem"))
    limits = ("--max-lag", "64KiB", "--send-buffer", "16KiB", "--ring", "1MiB")
    fanout = make_fanout(lab, f"--{protocol}", address(host, 9003), *tls, *limits)
    if protocol == "tls":
        slow = Subscriber(lab, host, 9003)
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        slow.socket = context.wrap_socket(slow.socket, server_hostname=HOST)
    else:
        slow = WebSocket(lab, host, 9003)
    fanout.wait_for("the subscriber", lambda m: m.sum("fanout_subscribers") == 1)
    slow.expected = 0
    sender = Sender(lab, host)
    while "falls behind" not in fanout.log():
        last = sender.send(50)
        fanout.wait_for("the datagrams", lambda m: m.sum("fanout_datagrams_total") == last + 1)
    slow.read_to(last)
    slow.read_to(sender.send())
    assert sum(slow.gaps) > 0
    metrics = fanout.wait_for("the gaps", lambda m: m.sum("fanout_skipped_frames_total") == sum(slow.gaps))
    assert metrics.sum("fanout_gaps_total") == len(slow.gaps)


def test_who_floods_a_websocket_is_disconnected(make_lab, make_fanout) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    fanout = make_fanout(lab, "--ws", address(host, 9002))
    flooder, quiet = WebSocket(lab, host, 9002), WebSocket(lab, host, 9002)
    fanout.wait_for("the subscribers", lambda m: m.sum("fanout_subscribers") == 2)
    with pytest.raises(OSError):  # noqa: PT011 - reset or broken pipe, as it happens
        while True:
            flooder.send(0x82, bytes(125))
    fanout.wait_for("the flood", lambda m: m.sum("fanout_disconnects_total", reason="flooded") == 1)
    quiet.read_to(Sender(lab, host).send(10))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_chromium_shows_the_feed(make_lab, make_fanout, tmp_path: Path, certificates: Path, scheme: str) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    flags = ("--certificate", str(certificates / "cert.pem"), "--private-key", str(certificates / "key.pem"))
    listen = ("--ws", address(host, 9002)) if scheme == "http" else ("--wss", address(host, 9002), *flags)
    fanout = make_fanout(lab, *listen)
    browser = Browser(lab, tmp_path, host, certificates)
    try:
        browser.call("Page.navigate", url=f"{scheme}://{HOST}:9002/")
        browser.wait_until("!!document.getElementById('state')")
        browser.wait_until("document.getElementById('state').textContent == 'subscribed'")
        fanout.wait_for("the page", lambda m: m.sum("fanout_subscribers") == 1)
        sender = Sender(lab, host)
        for number in range(100):
            sender.socket.send(f"quote {number}".encode())
        browser.wait_until("document.getElementById('datagrams').textContent == '100'")
        shown = browser.evaluate("document.getElementById('newest').textContent")
        assert shown.splitlines() == [f"quote {number}" for number in range(80, 100)]
        assert browser.evaluate("document.getElementById('gaps').textContent") == "0"
    finally:
        browser.close()
    assert fanout.metrics().sum("fanout_pages_total") >= 1


def test_ipv6_feed_and_subscribers(make_lab, make_fanout) -> None:
    lab = make_lab()
    host = lab.server["ipv6"]
    fanout = make_fanout(lab, "--tcp", address(host, TCP_PORT), feed=host)
    (subscriber,) = subscribe(lab, fanout, host)
    sender = Sender(lab, host)
    subscriber.read_to(sender.send(100))
    assert not subscriber.gaps


WRONG = [
    (["--udp", "127.0.0.1:0", "--tcp", "127.0.0.1:9000"], "port 0"),
    (["--udp", "127.0.0.1:5000"], "no address to listen on"),
    (["--udp", "127.0.0.1:5000", "--tls", "127.0.0.1:9000"], "--certificate"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--mode", "both"], "none of auto, user, kernel"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--framing", "len8"], "len16"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--slow-client", "wait"], "neither drop nor disconnect"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--ring", "1MiB"], "--ring is 1048576"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--interface", "lo"], "no multicast group"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--source", "::1"], "address family"),
    (["--udp", "239.1.1.1:5000", "--tcp", "127.0.0.1:9000", "--io", "copy"], "received by kernel sockets"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--start", "snapshot"], "snapshot-prefix"),
]


@pytest.mark.parametrize(("flags", "complaint"), WRONG, ids=[complaint for _, complaint in WRONG])
def test_wrong_usage_is_told_in_a_line(flags: list[str], complaint: str) -> None:
    result = subprocess.run([BINARY, "fanout", *flags], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert result.returncode == 2, result
    assert complaint in result.stderr and result.stdout == "", result.stderr


def test_an_address_in_use_and_an_absent_interface_are_named(make_lab, make_fanout) -> None:
    lab = make_lab()
    make_fanout(lab)
    second = make_fanout(lab, ready=False)
    assert second.wait() == 1
    assert lab.server["ipv4"] in second.log() and "in use" in second.log()
    third = make_fanout(lab, "--tcp", address(lab.server["ipv4"], 9100), "--interface", "absent0", feed="239.7.7.7", ready=False)
    assert third.wait() == 1
    assert "group 239.7.7.7 on absent0: " in third.log()
