"""Simulcast in `expressway relay`: Chromium publishes layers, others see the one that they ask for and that their path carries."""

import time
from collections.abc import Callable

import pytest
from harness import links
from harness.browser_peer import Page
from harness.lab import Lab
from harness.paths import LIMIT
from harness.rtp import MediaRelay
from harness.webrtc import HTTP, MEDIA

HIGH, LOW = 360, 90
LAYERS = ({"rid": "h", "maxBitrate": 700_000}, {"rid": "l", "scaleResolutionDownBy": 4, "maxBitrate": 80_000})


def room(lab: Lab) -> str:
    """A room of sessions alone."""
    host = lab.server["ipv4"]
    return "\n".join(["[webrtc]", f'listen = ["{host}:{MEDIA}"]', f'http = "{host}:{HTTP}"', "[[room]]", 'name = "studio"', "whip = true",
                      "whep = true", ""])


def url(lab: Lab, path: str) -> str:
    """Where a session is asked for."""
    return f"http://{lab.server['ipv4']}:{HTTP}{path}"


@pytest.fixture
def open_page(open_browser: Callable) -> Callable[[Lab], Page]:
    """Opens a browser whose page has peers."""
    return lambda lab: Page(open_browser(lab, False))


@pytest.fixture
def stage(make_lab, make_relay, open_page) -> tuple[Lab, MediaRelay, Page]:
    """A relay with a publisher of two layers."""
    lab = make_lab()
    relay = make_relay(lab, room(lab), "--io", "udp")
    page = open_page(lab)
    answer = page.publish("publisher", url(lab, "/whip/studio"), *LAYERS)
    assert "a=simulcast:recv h;l" in answer["text"] and answer["etag"], answer
    return lab, relay, page


def narrow(lab: Lab, port: int, rate: str) -> None:
    """What the relay sends to that port goes at that rate, with 200 ms of it waiting at most: nothing else does."""
    classes = (
        "qdisc replace dev DEV root handle 1: htb default 10",
        "class add dev DEV parent 1: classid 1:10 htb rate 1gbit",
        f"class add dev DEV parent 1: classid 1:20 htb rate {rate} burst 2k cburst 2k",
        "qdisc add dev DEV parent 1:20 bfifo limit 6000",
        f"filter add dev DEV parent 1: protocol ip u32 match ip dport {port} 0xffff flowid 1:20",
    )
    for line in classes:
        lab.run("server", "tc", *line.replace("DEV", links.SERVER).split())


def shows(height: int) -> str:
    """Pictures of that height come."""
    return f"it.frameHeight == {height} && it.framesDecoded > 5"


def test_a_player_sees_the_layer_that_it_asks_for(stage) -> None:
    lab, relay, page = stage
    page.play("any", url(lab, "/whep/studio"))
    page.play("low", url(lab, "/whep/studio?layer=l"))
    page.wait("any", shows(HIGH))
    page.wait("low", shows(LOW))
    assert 'rel="urn:ietf:params:whep:ext:core:layer"' in page.value("any", "link")
    # One changes; the pictures of the other stay.
    json = "application/json"
    assert page.send("any", "POST", "/layer", '{"encodingId": "l"}', json) == 204
    page.wait("any", shows(LOW))
    assert page.send("low", "POST", "/layer", "{}", json) == 204
    page.wait("low", shows(HIGH))
    seen = {name: page.inbound(name) for name in ("any", "low")}
    for name, height in (("any", LOW), ("low", HIGH)):
        page.wait(name, f"{shows(height)} && it.framesDecoded > {seen[name]['framesDecoded']} + 20")
        # It is one stream: nothing of it was lost, and no decoder gave up.
        assert page.inbound(name)["packetsLost"] <= 0, page.inbound(name)
    assert relay.metrics().sum("relay_webrtc_layer_changes_total") >= 2
    for body, kind, status in (("{", json, 400), ('{"encodingId": "a b"}', json, 400), ("l", "text/plain", 415)):
        assert page.send("any", "POST", "/layer", body, kind) == status
    metrics = relay.metrics()
    assert metrics.sum("relay_streams") == 2
    assert metrics.sum("relay_webrtc_ended_failed_total") == 0


def test_a_narrow_path_has_the_low_layer_until_it_is_wide_again(stage) -> None:
    lab, relay, page = stage
    page.play("player", url(lab, "/whep/studio"))
    page.wait("player", shows(HIGH))
    relay.wait_metric("relay_webrtc_now_estimate_lowest", 700_000)
    narrow(lab, page.port("player"), "250kbit")
    deadline = time.monotonic() + LIMIT
    while (estimate := relay.metrics().sum("relay_webrtc_now_estimate_lowest")) >= 700_000:
        assert time.monotonic() < deadline, estimate
        time.sleep(0.1)
    page.wait("player", shows(LOW))
    seen = page.inbound("player")["framesDecoded"]
    page.wait("player", f"it.framesDecoded > {seen} + 20 && {shows(LOW)}")
    lab.run("server", "tc", "qdisc", "del", "dev", links.SERVER, "root")
    page.wait("player", shows(HIGH))
    relay.wait_metric("relay_webrtc_now_estimate_lowest", 700_000)
    assert relay.metrics().sum("relay_webrtc_layer_changes_total") >= 2


def test_ice_restarts_while_pictures_flow(stage) -> None:
    lab, relay, page = stage
    page.play("player", url(lab, "/whep/studio"))
    page.wait("player", shows(HIGH))
    fragment, kind = "a=end-of-candidates\r\n", "application/trickle-ice-sdpfrag"
    before = page.value("player", "etag")
    for fields, body, status in (
        ({}, fragment, 428),
        ({"If-Match": '"other"'}, fragment, 412),
        ({"If-Match": before}, fragment, 204),
        ({"If-Match": "*"}, fragment, 400),
        ({"If-Match": before}, "nonsense", 400),
    ):
        assert page.send("player", "PATCH", "", body, kind, **fields) == status, (fields, body)
    for name in ("player", "publisher"):
        answer = page.restart(name)
        assert answer["etag"] and "a=ice-lite" in answer["text"] and "a=candidate:" in answer["text"], answer
        seen = page.inbound("player")["framesDecoded"]
        page.wait("player", f"it.framesDecoded > {seen} + 30")
        page.browser.wait_until(f"['connected', 'completed'].includes(peers.{name}.connection.iceConnectionState)")
    # What was true of the ICE session before is true no more.
    assert page.value("player", "etag") != before
    assert page.send("player", "PATCH", "", fragment, kind, **{"If-Match": before}) == 412
    assert page.send("player", "DELETE", "", "", "") == 200
    metrics = relay.metrics()
    assert metrics.sum("relay_http_restarted_total") == 2
    assert metrics.sum("relay_http_refused_stale_total") == 2
    assert metrics.sum("relay_webrtc_ended_failed_total") == 0
