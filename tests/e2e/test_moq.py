"""Media over QUIC in `expressway relay` over a veth: moq-rs publishes, subscribes and fetches; strangers by hand."""

from pathlib import Path

import pytest
from harness.moq import KEY, Stranger, flows, gauge, keys, make_peer, room, token, url

# Fixtures.
__all__ = ["keys", "make_peer"]
PROTOCOL_VIOLATION, UNAUTHORIZED, TIMEOUT = 3, 2, 0x11
CANCEL, NOT_FOUND, NO_CAPACITY = 0x1, 0x33, 0x30


def subscription(number: int, broadcast: str, track: str) -> str:
    """A request for a track, as strangers are told to send it: type, length, number, names, and wishes of 0."""
    names = b"".join(bytes([len(name)]) + name.encode() for name in (broadcast, track))
    body = bytes([number]) + names + bytes(5)
    return f"bidi:02{len(body):02x}{body.hex()}"


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_one_publishes_and_all_get_each_object_once_and_in_order(make_lab, make_relay, make_peer, keys, mode: str) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys, head="workers = 2" if mode == "udp" else ""), "--io", mode)
    assert relay.lines()[0]["ready"] == {"room": "studio", "rtp_in": None, "io": mode, "receivers": 0}
    early = [make_peer(lab, "subscribe", url(lab), "cam/1", "--size", "20000") for _ in range(3)]
    for peer in early:
        peer.event("connected")
    publisher = make_peer(lab, "publish", url(lab), "cam/1", "--objects", "7", "--size", "20000", "--interval", "0.02")
    publisher.event("announced")
    flows(relay, publisher, 3)
    publisher.command("groups 20")
    for peer in early:
        assert peer.groups(20) == list(range(20))
    # Who comes late gets the newest group from its start, and what follows.
    late = make_peer(lab, "subscribe", url(lab), "cam/1", "--size", "20000")
    assert late.groups(1) == [19]
    publisher.command("groups 5")
    for peer in (*early, late):
        assert peer.groups(5) == list(range(20, 25))
    # The track ends for all when its publisher says so.
    publisher.command("finish")
    for peer in (*early, late):
        peer.event("complete")
    metrics = relay.metrics()
    assert metrics.sum("relay_moq_objects_total") == 25 * 7
    assert metrics.sum("relay_moq_groups_total") == 25
    assert metrics.sum("relay_moq_groups_skipped_total") == metrics.sum("relay_moq_groups_cut_total") == 0
    # What was sent is what came in, once for each, but for a few octets that times take.
    came = metrics.sum("relay_moq_bytes_total")
    assert abs(metrics.sum("relay_moq_bytes_sent_total") - came * (3 + 6 / 25)) < 100
    publisher.command("end")
    gauge(relay, "relay_moq_now_broadcasts", 0)
    for peer in (*early, late):
        peer.finish()
    gauge(relay, "relay_moq_now_sessions", 0)
    gauge(relay, "relay_moq_now_tracks", 0)
    assert relay.metrics().sum("relay_moq_now_cached_bytes") == 0


def test_broadcasts_are_told_as_they_come_and_go(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    watcher = make_peer(lab, "watch", url(lab))
    watcher.event("connected")
    first = make_peer(lab, "publish", url(lab), "cam/1")
    told = watcher.event("broadcast")
    assert (told["path"], told["active"]) == ("cam/1", True)
    # What is behind the room in the URL is in front of the path.
    second = make_peer(lab, "publish", url(lab, "/studio/cam"), "2")
    told = watcher.event("broadcast")
    assert (told["path"], told["active"]) == ("cam/2", True)
    inner = make_peer(lab, "watch", url(lab, "/studio/cam"))
    assert sorted(inner.event("broadcast")["path"] for _ in range(2)) == ["1", "2"]
    first.command("unannounce")
    told = watcher.event("broadcast")
    assert (told["path"], told["active"]) == ("cam/1", False)
    # One that vanishes is gone when its connection is.
    second.process.kill()
    told = watcher.wait(lambda event: event["event"] == "broadcast", "the end of a broadcast", 60)
    assert (told["path"], told["active"]) == ("cam/2", False)
    gauge(relay, "relay_moq_now_broadcasts", 0)


def test_groups_that_are_kept_can_be_fetched_and_others_not(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys, 'track_cache = "64KiB"', 'room_cache = "64KiB"'), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam", "--objects", "4", "--size", "2000", "--interval", "0.02")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam", "--size", "2000")
    flows(relay, publisher, 1)
    publisher.command("groups 20")
    assert viewer.groups(20) == list(range(20))
    fetcher = make_peer(lab, "fetch", url(lab), "cam", "--start", "18", "--size", "2000")
    assert fetcher.event("group") == {"event": "group", "group": 18, "objects": 4}
    missing = make_peer(lab, "fetch", url(lab), "cam", "--start", "0", "--size", "2000")
    missing.event("over")
    metrics = relay.metrics()
    assert (metrics.sum("relay_moq_fetches_total"), metrics.sum("relay_moq_fetches_missed_total")) == (1, 1)
    # 8 kB a group: what is kept stays within its limit.
    assert metrics.sum("relay_moq_groups_evicted_total") >= 12
    assert 0 < metrics.sum("relay_moq_now_cached_bytes") <= 64 << 10
    # Nobody subscribes any more: the publisher is told, and nothing is kept.
    publisher.command("unused")
    viewer.finish()
    publisher.event("unused")
    gauge(relay, "relay_moq_now_cached_bytes", 0)


def test_a_publisher_that_comes_back_takes_its_place(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    first = make_peer(lab, "publish", url(lab), "cam")
    first.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam")
    flows(relay, first, 1)
    first.command("groups 2")
    assert viewer.groups(2) == [0, 1]
    second = make_peer(lab, "publish", url(lab), "cam")
    second.event("announced")
    relay.wait_metric("relay_moq_replaced_total", 1)
    viewer.event("over")
    again = make_peer(lab, "subscribe", url(lab), "cam")
    flows(relay, second, 2)
    second.command("groups 2")
    assert again.groups(2) == [0, 1]
    # Once the second is gone, the first is there again, which was connected all the time.
    second.finish()
    again.event("over")
    gauge(relay, "relay_moq_now_sessions", 1)
    gauge(relay, "relay_moq_now_broadcasts", 1)
    third = make_peer(lab, "subscribe", url(lab), "cam")
    flows(relay, first, 3)
    first.command("groups 1")
    # Its newest before that may come too.
    assert third.groups(1)[0] in (1, 2)


def test_tokens_say_who_may_publish_and_who_may_subscribe(make_lab, make_relay, make_peer, keys, tmp_path: Path) -> None:
    lab = make_lab()
    file = tmp_path / "token.keys"
    file.write_text(f"{KEY}\n")
    relay = make_relay(lab, room(lab, keys, f'token_keys = "{file}"'), "--io", "udp")
    host = lab.server["ipv4"]
    both = token("/moq/studio/*")
    for refused in ("/studio", "/nowhere", f"/studio?token={token('/moq/other/*')}", f"/studio?token={token('/moq/*', KEY[::-1])}", ""):
        stranger = make_peer(lab, "send", host, "--wait", "30", f"setup:{refused}", kind=Stranger)
        assert stranger.event("sent")["closed"] == UNAUTHORIZED, refused
    assert relay.metrics().sum("relay_moq_refused_session_total") == 5
    publisher = make_peer(lab, "publish", url(lab, f"/studio?token={token('/moq/studio/publish')}"), "cam")
    viewer = make_peer(lab, "subscribe", url(lab, f"/studio?token={both}"), "cam")
    flows(relay, publisher, 1)
    publisher.command("groups 1")
    assert viewer.groups(1) == [0]
    # Who may subscribe only announces in vain.
    make_peer(lab, "publish", url(lab, f"/studio?token={token('/moq/studio/subscribe')}"), "other").event("announced")
    allowed = make_peer(lab, "publish", url(lab, f"/studio?token={both}"), "third")
    allowed.event("announced")
    gauge(relay, "relay_moq_now_broadcasts", 2)
    assert {one["path"] for one in relay.rooms()[0]["moq"]["broadcasts"]} == {"cam", "third"}


def test_who_never_reads_is_skipped_and_holds_nobody_up(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam", "--objects", "10", "--size", "10000", "--interval", "0.01")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam", "--size", "10000")
    viewer.event("subscribed")
    slow = make_peer(lab, "slow", lab.server["ipv4"], "cam", kind=Stranger)
    flows(relay, publisher, 2)
    publisher.command("groups 60")
    slow.event("stuck")
    # 6 MB for the one that reads, each object of it; 64 KiB for the other.
    assert viewer.groups(60) == list(range(60))
    relay.wait_metric("relay_moq_groups_cut_total", 1)
    relay.wait_metric("relay_moq_groups_skipped_total", 1)
    slow.command("")
    seen = slow.event("seen")
    assert seen["octets"] <= 64 << 10, seen
    metrics = relay.metrics()
    assert metrics.sum("relay_moq_bytes_sent_total") < metrics.sum("relay_moq_bytes_total") * 1.5


def test_what_is_too_much_is_refused_and_the_rest_goes_on(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    limits = ("broadcasts = 2", "requests = 4", 'track_cache = "64KiB"', 'room_cache = "128KiB"', 'max_object = "1MiB"')
    relay = make_relay(lab, room(lab, keys, *limits), "--io", "udp")
    host = lab.server["ipv4"]
    publisher = make_peer(lab, "publish", url(lab), "cam", "--size", "1000", "--interval", "0.01")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam", "--size", "0")
    flows(relay, publisher, 1)
    # A group that is more than what is kept ends early, which moq-rs may not tell if it had not read its head; the next comes whole.
    publisher.command("large 300000")
    relay.wait_metric("relay_moq_dropped_group_too_large_total", 1)
    publisher.command("groups 2")
    assert viewer.groups(2) == [1, 2]
    # Frames that are none: half of one, and one that claims 2 GiB.
    for count, frames in enumerate(("00050000", "00ffffffff7fffffff00"), 1):
        bad = make_peer(lab, "publish", host, f"bad{count}", frames, kind=Stranger)
        bad.event("announced")
        watcher = make_peer(lab, "subscribe", url(lab), f"bad{count}", "--size", "0")
        bad.event("written")
        relay.wait_metric("relay_moq_dropped_malformed_total", count)
        watcher.finish()
        bad.command("")
        gauge(relay, "relay_moq_now_broadcasts", 1)
    # A third broadcast is none.
    make_peer(lab, "publish", url(lab), "two").event("announced")
    gauge(relay, "relay_moq_now_broadcasts", 2)
    make_peer(lab, "publish", url(lab), "three").event("announced")
    relay.wait_metric("relay_moq_refused_broadcast_total", 1)
    # Five subscriptions of a session.
    asked = [subscription(number, "cam", "video") for number in range(5)]
    many = make_peer(lab, "send", host, "--wait", "5", ",".join(["setup:/studio", *asked]), kind=Stranger)
    told = many.event("sent")
    assert told["closed"] is None and list(told["resets"].values()) == [NO_CAPACITY], told
    relay.wait_metric("relay_moq_refused_limit_total", 1)
    publisher.command("groups 1")
    assert viewer.groups(1) == [3]


def test_hostile_sessions_are_closed_and_change_nothing(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    host = lab.server["ipv4"]
    publisher = make_peer(lab, "publish", url(lab), "cam")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam")
    flows(relay, publisher, 1)
    setup = "setup:/studio"
    violations = [
        f"{setup},{setup}",  # SETUP twice
        f"{setup},bidi:01ffffffffffffffff",  # a message of 2^62 octets
        f"{setup},bidi:020900ffffffffffffff7f",  # a path of as many
        f"{setup},bidi:01020000ff",  # octets behind a request
        f"{setup},bidi:0603056361",  # a field that ends with the message
        "uni:01050102c0ffff",  # SETUP with a path that is longer than it
    ]
    peer = make_peer(lab, "send", host, "--wait", "30", *violations, kind=Stranger)
    for words in violations:
        told = peer.event("sent")
        assert told["closed"] == PROTOCOL_VIOLATION, (words, told)
    # What is only not there, or not known, is refused by itself.
    missing = subscription(0, "none", "v")
    harmless = [f"{setup},bidi:3f0000", f"{setup},uni:0700", f"{setup},{missing}", f"{setup},bidi:0400", f"{setup},uni:00020500ff"]
    peer = make_peer(lab, "send", host, "--wait", "3", *harmless, kind=Stranger)
    codes = [peer.event("sent") for _ in harmless]
    assert [told["closed"] for told in codes] == [None] * len(harmless), codes
    assert list(codes[2]["resets"].values()) == [NOT_FOUND], codes
    relay.wait_metric("relay_moq_refused_not_found_total", 1)
    # One that says nothing of itself is closed.
    silent = make_peer(lab, "send", host, "--wait", "30", "bidi:0102", kind=Stranger)
    assert silent.event("sent")["closed"] == TIMEOUT
    publisher.command("groups 3")
    assert viewer.groups(3) == [0, 1, 2]
    gauge(relay, "relay_moq_now_sessions", 2)
