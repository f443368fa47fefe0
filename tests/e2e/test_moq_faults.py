"""What goes wrong with Media over QUIC in `expressway relay` over a veth: the relay ends, keys change, packets are lost, publishers
vanish, subscribers read nothing or stop what they have asked for."""

import signal
import subprocess
import time
from pathlib import Path

from harness import kernel
from harness.moq import KEY, Stranger, flows, gauge, keys, make_peer, room, token, url
from harness.paths import LIMIT

# Fixtures.
__all__ = ["keys", "make_peer"]
UNAUTHORIZED = 2


def test_at_its_end_sessions_hear_goaway_and_what_is_under_way_comes_whole(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam", "--objects", "20", "--size", "2000")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam", "--size", "2000")
    flows(relay, publisher, 1)
    listener = make_peer(lab, "stay", lab.server["ipv4"], "x", kind=Stranger)
    listener.event("connected")
    publisher.command("groups 1")
    assert viewer.groups(1) == [0]
    relay.signal(signal.SIGTERM)
    told = listener.event("closed")
    # A stream of the relay's with the type of GOAWAY and an empty URI, and then the connection's end without an error.
    assert told["goaway"] == "050100" and told["code"] == 0, told
    assert relay.wait() == 0, relay.log()


def test_keys_that_are_read_again_hold_for_sessions_to_come(make_lab, make_relay, make_peer, keys, tmp_path: Path) -> None:
    lab = make_lab()
    file, other = tmp_path / "token.keys", KEY[::-1]
    file.write_text(f"{KEY}\n")
    relay = make_relay(lab, room(lab, keys, f'token_keys = "{file}"'), "--io", "udp")
    before = url(lab, f"/studio?token={token('/moq/studio/*')}")
    publisher = make_peer(lab, "publish", before, "cam")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", before, "cam")
    flows(relay, publisher, 1)
    file.write_text(f"{other}\n")
    relay.signal(signal.SIGHUP)
    deadline = time.monotonic() + LIMIT
    while "reloaded" not in relay.log():
        assert time.monotonic() < deadline, relay.log()
        time.sleep(0.05)
    # Sessions that there are go on.
    publisher.command("groups 2")
    assert viewer.groups(2) == [0, 1]
    host = lab.server["ipv4"]
    refused = make_peer(lab, "send", host, "--wait", "30", f"setup:/studio?token={token('/moq/studio/*')}", kind=Stranger)
    assert refused.event("sent")["closed"] == UNAUTHORIZED
    later = make_peer(lab, "subscribe", url(lab, f"/studio?token={token('/moq/studio/subscribe', other)}"), "cam")
    relay.wait_metric("relay_moq_subscriptions_total", 2)
    publisher.command("groups 1")
    assert viewer.groups(1) == [2]
    while later.groups(1) != [2]:
        pass


def test_a_publisher_that_vanishes_is_gone_in_its_time(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys, 'publisher_timeout = "2s"'), "--io", "udp")
    first = make_peer(lab, "publish", url(lab), "cam")
    first.event("announced")
    gauge(relay, "relay_moq_now_broadcasts", 1)
    second = make_peer(lab, "publish", url(lab), "cam")
    second.event("announced")
    relay.wait_metric("relay_moq_replaced_total", 1)
    viewer = make_peer(lab, "subscribe", url(lab), "cam")
    flows(relay, second, 1)
    # It stops where it is, without a word: the first, which is silent but there, takes its place.
    second.process.send_signal(signal.SIGSTOP)
    viewer.event("over")
    relay.wait_metric("relay_moq_ended_vanished_total", 1)
    again = make_peer(lab, "subscribe", url(lab), "cam")
    flows(relay, first, 2)
    first.command("groups 2")
    assert again.groups(2) == [0, 1]
    second.process.send_signal(signal.SIGCONT)


def test_who_reads_nothing_holds_no_more_than_a_session_may(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys, 'session_memory = "64KiB"', 'memory = "1MiB"'), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam", "--objects", "10", "--size", "20000", "--interval", "0.02")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam", "--size", "20000")
    flows(relay, publisher, 1)
    # Both read at first; then one is not there any more, while its connection is.
    gone = make_peer(lab, "subscribe", url(lab), "cam", "--size", "20000", "--max-age", "200")
    flows(relay, publisher, 2)
    publisher.command("groups 5")
    gone.groups(3)
    gone.process.send_signal(signal.SIGSTOP)
    publisher.command("groups 30")
    most, last = 0, 0
    while last < 34:
        last = viewer.groups(1)[0]
        most = max(most, relay.metrics().sum("relay_moq_memory_bytes"))
    # Two sessions, each with what its bytes take beside them.
    assert 0 < most <= 4 * (64 << 10), most
    assert relay.metrics().sum("relay_moq_memory_budget_bytes") == 1 << 20
    relay.wait_metric("relay_moq_starved_total", 1)
    relay.wait_metric("relay_moq_groups_cut_total", 1)
    gone.process.send_signal(signal.SIGCONT)


def test_requests_that_are_stopped_at_once_by_the_thousand_leave_nothing(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam")
    flows(relay, publisher, 1)
    publisher.command("groups 1")
    assert viewer.groups(1) == [0]
    rude = make_peer(lab, "rude", lab.server["ipv4"], "cam", "2000", kind=Stranger)
    assert rude.event("stopped") == {"event": "stopped", "count": 2000, "closed": None}
    publisher.command("groups 2")
    assert viewer.groups(2) == [1, 2]
    gauge(relay, "relay_moq_now_subscriptions", 1)
    rude.command("")
    gauge(relay, "relay_moq_memory_bytes", 0)
    assert relay.metrics().sum("relay_moq_sessions_failed_total") == 0


def test_groups_come_whole_where_packets_are_lost(make_lab, make_relay, make_peer, keys) -> None:
    lab = make_lab()
    for role, interface in (("server", "server0"), ("client", "client0")):
        words = lab.inside(role, "tc", "qdisc", "add", "dev", interface, "root", "netem", "loss", "5%", "delay", "2ms", "1ms")
        if "unknown" in subprocess.run(words, capture_output=True, text=True, check=False).stderr:
            kernel.lacks("this kernel has no netem (CONFIG_NET_SCH_NETEM)")
    relay = make_relay(lab, room(lab, keys), "--io", "udp")
    publisher = make_peer(lab, "publish", url(lab), "cam", "--objects", "10", "--size", "5000", "--interval", "0.05")
    publisher.event("announced")
    viewer = make_peer(lab, "subscribe", url(lab), "cam", "--size", "5000")
    flows(relay, publisher, 1)
    publisher.command("groups 30")
    seen = viewer.groups_up_to(29)
    assert seen == sorted(set(seen)) and len(seen) > 20, seen
    publisher.command("finish")
    viewer.event("complete")
