"""Subscribers of a fan-out by TLS and WebSocket, in a browser too."""

import ssl
import struct
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from harness.browser import Browser
from harness.fanout import Sender, Subscriber
from harness.paths import HOST
from harness.server import address
from harness.websocket import WebSocket, client_frame


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
    fanout.wait_for("the refusal", lambda m: m.sum("fanout_refused_origin_total") == 1)
    fanout.wait_for("its end", lambda m: m.sum("fanout_disconnects_total", reason="protocol") == 1)
    # At the end the close frame says that the server goes.
    staying = WebSocket(lab, host, 9002)
    fanout.wait_for("the subscriber", lambda m: m.sum("fanout_subscribers") == 1)
    fanout.stop()
    opcode, content = staying.message()
    assert (opcode, content[:2]) == (8, struct.pack(">H", 1001))


def test_what_comes_with_a_request_is_read_to_its_end(make_lab, make_fanout, certificates: Path) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    tls = ("--certificate", str(certificates / "cert.pem"), "--private-key", str(certificates / "key.pem"))
    fanout = make_fanout(lab, "--wss", address(host, 9003), *tls)
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    # One TLS record, of more than a request may have: once it is decrypted, the socket has nothing to read.
    early = client_frame(0x82, bytes(125)) * 120 + client_frame(0x89, b"last")
    subscriber = WebSocket(lab, host, 9003, tls=context, early=early)
    fanout.wait_for("the subscriber", lambda m: m.sum("fanout_subscribers") == 1)
    sender = Sender(lab, host)
    subscriber.read_to(sender.send(10))
    assert subscriber.controls == [(10, b"last")]


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
    while "fell behind" not in fanout.log():
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
