"""Media over QUIC over WebTransport in `expressway relay` over a veth: moq-rs as publisher and subscriber; aioquic's WebTransport for what
a client may do, and what it may not."""

import signal
from pathlib import Path

import pytest
from harness.moq import KEY, PORT, MoqPeer, flows, gauge, keys, make_peer, room, token
from harness.moq import url as raw_url

# Fixtures.
__all__ = ["keys", "make_peer"]
LITE = 'wt-available-protocols="moq-lite-04","moq-lite-05"'
# HTTP/3 and WebTransport.
ID_ERROR, REJECTED, MESSAGE_ERROR, NO_ERROR = 0x108, 0x10B, 0x10E, 0x100
NOT_THERE, GONE = 0x3994BD84, 0x170D7B68
# moq-lite-05.
SETUP = "010100"  # type, length, no parameters
WATCH = "01020000"  # ANNOUNCE_REQUEST of everything
# Capsules: the type that closes a session, and the whole one that drains it.
CLOSE, DRAIN = "6843", "800078ae00"


class Client(MoqPeer):
    """A client of aioquic's WebTransport."""

    SCRIPT = "webtransport_peer.py"


def url(lab, path: str = "/studio") -> str:
    """Where a session over WebTransport goes."""
    return f"https://{lab.server['ipv4']}:{PORT}{path}"


def http3(code: int) -> int:
    """The code on the wire for one of a session's stream (draft-ietf-webtrans-http3-15, section 4.4)."""
    return 0x52E4A40FA8DB + code + code // 0x1E


@pytest.fixture
def play(make_peer):
    """Starts a client that does what its words say."""
    return lambda lab, *words: make_peer(lab, "play", lab.server["ipv4"], *words, kind=Client)


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_who_comes_by_either_way_gets_each_object_once_and_in_order(make_lab, make_relay, make_peer, keys, mode: str) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys, head="workers = 2" if mode == "udp" else ""), "--io", mode)
    ways = (url(lab), url(lab), raw_url(lab))
    viewers = [make_peer(lab, "subscribe", way, "cam/1", "--size", "20000") for way in ways]
    for viewer in viewers:
        viewer.event("connected")
    publisher = make_peer(lab, "publish", url(lab), "cam/1", "--objects", "7", "--size", "20000", "--interval", "0.02")
    publisher.event("announced")
    flows(relay, publisher, 3)
    publisher.command("groups 20")
    for viewer in viewers:
        assert viewer.groups(20) == list(range(20))
    # One that publishes without HTTP/3 is seen over it.
    other = make_peer(lab, "publish", raw_url(lab, "/studio/cam"), "2", "--size", "5000")
    other.event("announced")
    late = make_peer(lab, "subscribe", url(lab, "/studio/cam"), "2", "--size", "5000")
    late.event("connected")
    flows(relay, other, 4)
    other.command("groups 3")
    assert late.groups_up_to(2)[-1] == 2
    fetched = make_peer(lab, "fetch", url(lab), "cam/1", "--start", "19", "--size", "20000")
    assert fetched.event("group") == {"event": "group", "group": 19, "objects": 7}
    publisher.command("finish")
    for viewer in viewers:
        viewer.event("complete")
    relay.wait_metric("webtransport_sessions_total", 5)
    metrics = relay.metrics()
    assert metrics.sum("relay_moq_groups_skipped_total") == metrics.sum("relay_moq_groups_cut_total") == 0
    for peer in (publisher, other, late, fetched, *viewers):
        peer.finish()
    gauge(relay, "relay_moq_now_sessions", 0)
    gauge(relay, "relay_moq_now_broadcasts", 0)
    gauge(relay, "relay_moq_now_cached_bytes", 0)
    metrics = relay.metrics()
    assert metrics.sum("connections_protocol_error_total") == metrics.sum("refused_webtransport_stream_total") == 0


def test_a_session_is_for_a_room_that_is_there_and_who_may_enter_it(make_lab, make_relay, make_peer, keys, play, tmp_path: Path) -> None:
    lab = make_lab()
    file = tmp_path / "token.keys"
    file.write_text(f"{KEY}\n")
    pages = 'origins = ["https://player.test"]'
    relay = make_relay(lab, room(lab, keys, pages), "--io", "udp")
    words = (
        "get /studio",
        "connect /nowhere",
        f'connect /studio {LITE} origin=https://other.test',
        'connect /studio wt-available-protocols="moq-lite-03"',
        "connect /studio :protocol=websocket",
        f"connect /studio {LITE} origin=https://PLAYER.test sec-webtransport-http3-draft02=1",
    )
    client = play(lab, *words)
    assert client.event("get")["status"] == "404"
    assert [client.event("connect")["status"] for _ in range(4)] == ["404", "403", "400", "501"]
    fields = client.event("connect")["fields"]
    assert fields == {":status": "200", "sec-webtransport-http3-draft": "draft02", "wt-protocol": '"moq-lite-05"'}
    client.event("done")
    relay.wait_metric("refused_webtransport_session_total", 3)
    assert relay.metrics().sum("relay_moq_refused_session_total") == 2
    # The same by moq-rs; and keys, which are read again, are asked for from then on.
    make_peer(lab, "publish", url(lab, "/nowhere"), "cam").event("failed")
    relay.write(room(lab, keys, pages, f'token_keys = "{file}"'))
    relay.signal(signal.SIGHUP)
    relay.wait_log("reloaded")
    refused = play(lab, "connect /studio", "connect /nowhere", f"connect /studio?token={token('/moq/other/*')}")
    assert [refused.event("connect")["status"] for _ in range(3)] == ["403"] * 3
    publisher = make_peer(lab, "publish", url(lab, f"/studio?token={token('/moq/studio/publish')}"), "cam")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab, f"/studio?token={token('/moq/studio/subscribe')}"), "cam")
    viewer.event("connected")
    flows(relay, publisher, 1)
    publisher.command("groups 2")
    assert viewer.groups_up_to(1)[-1] == 1


def test_what_the_relay_says_of_itself_suits_every_dialect(make_lab, make_relay, keys, play) -> None:
    lab = make_lab()
    make_relay(lab, room(lab, keys), "--io", "udp")
    client = play(lab, "settings", f"connect /studio :protocol=webtransport-h3 {LITE}", f"uni-fin {SETUP}", f"bidi {WATCH}", "read")
    said = client.event("settings")["settings"]
    once = ("0x8", "0x33", "0x2b603742", "0xc671706a", "0x14e9cd29", "0x2c7cf000")
    assert {name: said.get(name) for name in once} == dict.fromkeys(once, 1), said
    assert all(said[name] >= 1 << 60 for name in ("0x2b64", "0x2b65", "0x2b61")), said
    assert client.event("connect")["status"] == "200"
    assert client.event("read")["streams"]


def test_streams_that_come_before_their_session_wait_for_it(make_lab, make_relay, make_peer, keys, play) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam")
    publisher.event("announced")
    # Forty, of which MoQ stops each that it takes: it knows no such type. Those beyond 32 are not its own.
    client = play(lab, "early 40", "connect /studio", f"uni-fin {SETUP}", "streams 40", "pause")
    assert client.event("connect")["status"] == "200"
    stops = [code for _, code in client.event("streams")["stops"]]
    assert stops.count(NOT_THERE) == 8, stops
    relay.wait_metric("refused_webtransport_stream_total", 8)
    assert relay.metrics().sum("relay_moq_now_sessions") == 2
    # Of a session that no request of the connection is for, and of one that cannot be.
    other = play(lab, "connect /studio", f"uni-fin {SETUP}", "uni-of 400 00", "bidi-of 400 00", "streams 2")
    told = other.event("streams")
    assert {code for _, code in told["stops"]} == {NOT_THERE} and told["closed"] is None, told
    wrong = play(lab, "connect /studio", "uni-of 3 00", "closed")
    assert wrong.event("closed")["code"] == ID_ERROR
    relay.wait_metric("connections_protocol_error_total", 1)


def test_a_connection_has_one_session_and_its_end_is_that_of_its_streams(make_lab, make_relay, make_peer, keys, play) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam")
    publisher.event("announced")
    # The second is refused, and the first goes on.
    client = play(lab, "connect /studio", f"uni-fin {SETUP}", "connect /studio", f"bidi {WATCH}", "read", "end", "closed")
    assert client.event("connect")["status"] == "200"
    second = client.event("connect")
    assert (second["status"], second["reset"], second["closed"]) == (None, REJECTED, None), second
    assert client.event("read")["streams"]
    told = client.event("closed")
    assert told["code"] == NO_ERROR, told
    assert GONE in told["resets"].values(), told
    for last in ("reset", f"capsule {CLOSE}0400000007", "end"):
        # With streams open, of which nothing came; and not another word.
        client = play(lab, "connect /studio", f"uni-fin {SETUP}", "bidi 01", "uni 00", f"bidi {WATCH}", "read", last, "streams 3", "uni 00", "closed")
        told = client.event("streams")
        assert set(dict(told["stops"]).values()) == {GONE}, (last, told)
        assert client.event("closed")["code"] == NO_ERROR
    gauge(relay, "relay_moq_now_sessions", 1)
    assert relay.metrics().sum("refused_webtransport_session_total") == 1
    assert relay.metrics().sum("connections_protocol_error_total") == 0


def test_what_breaks_a_protocol_ends_what_it_is_of(make_lab, make_relay, make_peer, keys, play) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam")
    viewer.event("connected")
    flows(relay, publisher, 1)
    # Capsules: one that is too long, half of a number, octets behind the last; unknown ones of any length are passed over.
    for capsule in (f"{CLOSE}7fff", "990b4d3d020000", f"{CLOSE}0400000000ff"):
        client = play(lab, "connect /studio", f"uni-fin {SETUP}", f"capsule {capsule}", "closed")
        told = client.event("closed")
        assert MESSAGE_ERROR in told["resets"].values(), (capsule, told)
    client = play(lab, "connect /studio", f"uni-fin {SETUP}", "capsule 4abc0301020378ae00", f"bidi {WATCH}", "read", "pause")
    assert client.event("read")["streams"]
    client.event("paused")
    # The session is told of what breaks MoQ, and the rest of the connection ends in peace: SETUP twice, and one with a path.
    for words in ([f"uni-fin {SETUP}", f"uni-fin {SETUP}"], ["uni-fin 01040102012f"]):
        told = play(lab, "connect /studio", *words, "closed").event("closed")
        assert told["code"] == NO_ERROR and told["capsules"].startswith(CLOSE) and "00000003" in told["capsules"], told
    # A subscription to nothing is answered by a code of the session's.
    client = play(lab, "connect /studio", f"uni-fin {SETUP}", "bidi 020d00046e6f6e6501760000000000", "streams 1")
    assert http3(0x33) in dict(client.event("streams")["resets"]).values()
    # Datagrams have no use.
    client = play(lab, "connect /studio", f"uni-fin {SETUP}", "datagram 5", f"bidi {WATCH}", "read")
    client.event("read")
    relay.wait_metric("dropped_datagram_frame_total", 5)
    # HTTP/3 that is none.
    for words, code in ((["stream bidi 0000"], 0x105), (["stream uni 01"], 0x103), (["stream bidi 01020000"], 0x10E)):
        client = play(lab, *words, "streams 1")
        told = client.event("streams")
        assert code in (told["closed"], *dict(told["resets"]).values()), (words, told)
    publisher.command("groups 3")
    assert viewer.groups(3) == [0, 1, 2]


def test_clients_that_are_gone_and_ones_that_say_nothing_leave_nothing(make_lab, make_relay, make_peer, keys, play) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys, 'publisher_timeout = "2s"'), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam")
    publisher.event("announced")
    gauge(relay, "relay_moq_now_broadcasts", 1)
    viewer = make_peer(lab, "subscribe", url(lab), "cam")
    viewer.event("connected")
    flows(relay, publisher, 1)
    publisher.command("groups 2")
    assert viewer.groups(2) == [0, 1]
    publisher.process.send_signal(signal.SIGSTOP)
    viewer.event("over")
    relay.wait_metric("relay_moq_ended_vanished_total", 1)
    gauge(relay, "relay_moq_now_broadcasts", 0)
    publisher.process.kill()
    # Ten seconds for a session to be asked for.
    assert play(lab, "settings", "closed").event("closed")["code"] == NO_ERROR
    viewer.finish()
    gauge(relay, "relay_moq_now_sessions", 0)


def test_at_its_end_sessions_are_drained(make_lab, make_relay, make_peer, keys, play) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam", "--objects", "20", "--size", "2000")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam", "--size", "2000")
    viewer.event("connected")
    flows(relay, publisher, 1)
    listener = play(lab, "connect /studio", f"uni-fin {SETUP}", f"bidi {WATCH}", "read", "closed")
    listener.event("read")
    publisher.command("groups 1")
    assert viewer.groups(1) == [0]
    relay.signal(signal.SIGTERM)
    told = listener.event("closed")
    assert told["code"] == NO_ERROR and DRAIN in told["capsules"], told
    assert relay.wait() == 0, relay.log()


def test_a_subscriber_that_reads_nothing_is_skipped(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys, 'session_memory = "64KiB"'), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam", "--objects", "10", "--size", "10000", "--interval", "0.01")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", raw_url(lab), "cam", "--size", "10000")
    viewer.event("connected")
    slow = make_peer(lab, "subscribe", url(lab), "cam", "--size", "10000", "--max-age", "200")
    slow.event("connected")
    flows(relay, publisher, 2)
    publisher.command("groups 3")
    slow.groups(2)
    slow.process.send_signal(signal.SIGSTOP)
    publisher.command("groups 40")
    assert viewer.groups_up_to(42)[-1] == 42
    relay.wait_metric("relay_moq_groups_skipped_total", 1)
    slow.process.send_signal(signal.SIGCONT)
    publisher.command("groups 2")
    assert slow.wait(lambda event: event["event"] == "group" and event["group"] >= 43, "a newer group")
