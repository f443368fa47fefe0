"""Media over QUIC in Chromium, over WebTransport: a page with @moq/net publishes into `expressway relay`, and plays from it, with a
certificate that it knows by its hash."""

import base64
import hashlib
import json
import ssl
from pathlib import Path

import pytest
from harness.moq import PORT, flows, gauge, keys, make_peer, room
from harness.moq import url as raw_url
from harness.paths import BINARY, PEERS, run


# Fixtures.
__all__ = ["keys", "make_peer"]


def content(group: int, number: int, size: int) -> bytes:
    """The octets of an object, as moq_peer.py makes them."""
    head = b"%d/%d/%d " % (group, number, size)
    return (head + hashlib.shake_128(head).digest(size))[:size]


def leaf_hash(keys: Path) -> str:
    """By which a browser knows the certificate."""
    text = (keys / "cert.pem").read_text()
    first = text[: text.index("-----END CERTIFICATE-----")] + "-----END CERTIFICATE-----\n"
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()


@pytest.fixture
def open_page(open_browser, tmp_path: Path):
    """Opens a page with two peers, each of which has a session of the relay's room."""

    def open_one(lab, hash_: str):
        (tmp_path / "page.html").write_text("<!doctype html><title>moq</title><script src=moq.js></script>")
        (tmp_path / "moq.js").write_text((PEERS / "moq.js").read_text())
        browser = open_browser(lab, False)
        # A file is a secure context, as pages of https are.
        browser.call("Page.navigate", url=f"file://{tmp_path}/page.html")
        browser.wait_until("document.readyState == 'complete' && !!globalThis.player")
        url = json.dumps(f"https://{lab.server['ipv4']}:{PORT}/studio")
        for peer in ("moq", "player"):
            assert browser.evaluate(f"{peer}.connect({url}, {json.dumps(hash_)})") == "moq-lite-05"
        return browser

    return open_one


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_a_page_publishes_and_another_plays(make_lab, make_relay, make_peer, open_page, keys, mode: str) -> None:
    lab = make_lab()
    # Browsers take no certificate by its hash that is good for more than 14 days.
    run([BINARY, "cert", "--host", lab.server["ipv4"], "--days", "10", "--out", keys])
    relay = make_relay(lab, room(lab, keys), "--io", mode)
    page = open_page(lab, leaf_hash(keys))
    page.evaluate("moq.publish('page/1')")
    viewer = make_peer(lab, "subscribe", raw_url(lab), "page/1", "--size", "20000")
    viewer.event("connected")
    relay.wait_metric("relay_moq_broadcasts_total", 1)
    page.evaluate("void player.subscribe('page/1')")
    relay.wait_metric("relay_moq_subscriptions_total", 2)
    page.wait_until("moq.isUsed()")
    for group in range(10):
        objects = [[base64.b64encode(content(group, number, 20_000)).decode(), group * 10_000 + number * 1000] for number in range(5)]
        assert page.evaluate(f"moq.write({json.dumps(objects)})") == group
        # One that comes before the one before it would be passed over by a player.
        page.wait_until(f"player.seen.length > {group}")
    assert viewer.groups(10) == list(range(10))
    expected = [[hashlib.sha256(content(group, number, 20_000)).hexdigest() for number in range(5)] for group in range(10)]
    seen = page.evaluate("player.seen")
    assert [one["group"] for one in seen] == list(range(10)) and [one["objects"] for one in seen] == expected
    # What others publish comes to the page as well.
    other = make_peer(lab, "publish", raw_url(lab), "cam", "--objects", "3", "--size", "5000")
    other.event("announced")
    relay.wait_metric("relay_moq_broadcasts_total", 2)
    page.evaluate("player.seen.length = 0; void player.subscribe('cam')")
    flows(relay, other, 3)
    other.command("groups 1")
    page.wait_until("player.seen.length > 0")
    assert page.evaluate("player.seen[0].objects") == [hashlib.sha256(content(0, number, 5000)).hexdigest() for number in range(3)]
    # A page that says goodbye is gone.
    page.evaluate("moq.close()")
    viewer.event("over")
    gauge(relay, "relay_moq_now_broadcasts", 1)
    metrics = relay.metrics()
    assert metrics.sum("webtransport_sessions_total") == 2
    assert metrics.sum("connections_protocol_error_total") == metrics.sum("refused_webtransport_stream_total") == 0
