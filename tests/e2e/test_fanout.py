"""One UDP feed to many subscribers, over a veth, with clients on ordinary sockets."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from harness.fanout import FEED_PORT, TCP_PORT, Sender, subscribe
from harness.lab import Lab
from harness.paths import BINARY, LIMIT
from harness.server import address

GROUPS = ("239.7.7.7", "ff15::7")


def test_a_feed_reaches_all_subscribers_and_statistics_say_so(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--json")
    assert fanout.ready[0]["mode"] == "user" and "mode user: no measurements" in fanout.log(), "auto says why"
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


def sockets_that_send(pid: int) -> int:
    """AF_XDP sockets of a process with a TX ring, which is at XDP_PGOFF_TX_RING of linux/if_xdp.h."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    rings = [line.split()[2] for line in maps if "socket:" in line]
    assert rings, "no rings at all"
    return sum(int(offset, 16) == 0x80000000 for offset in rings)


@pytest.mark.parametrize("mode", ["copy", "hybrid", "generic", "auto"])
def test_a_feed_by_af_xdp(make_lab, make_fanout, mode: str) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--io", mode)
    # Nothing is sent by it: it is called by how it receives, and its sockets have no ring to send by.
    assert fanout.ready[0]["io"] == {"auto": "copy", "hybrid": "copy"}.get(mode, mode)
    (subscriber,) = subscribe(lab, fanout)
    sender = Sender(lab, lab.server["ipv4"])
    for _ in range(10):
        subscriber.read_to(sender.send(100))
    assert not subscriber.gaps
    metrics = fanout.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") >= 1000)
    assert metrics.sum("xdp_packets_total", verdict="redirect") >= 1000
    assert metrics.sum("tx_syscalls_total") == 0, "nothing is tried of sending"
    assert sockets_that_send(fanout.process.pid) == 0
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


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("mode", ["copy", "generic", "auto"])
def test_a_multicast_feed_by_af_xdp(make_lab, make_fanout, group: str, mode: str) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--interface", "server0", "--io", mode, feed=group)
    assert fanout.ready[0]["io"] == {"auto": "copy"}.get(mode, mode)
    # The membership is a kernel socket's, though AF_XDP takes what comes.
    file = "/proc/net/igmp6" if ":" in group else "/proc/net/igmp"
    wanted = "ff150000000000000000000000000007" if ":" in group else "070707EF"
    assert wanted in lab.run("server", "cat", file)
    (subscriber,) = subscribe(lab, fanout)
    subscriber.read_to(Sender(lab, group, interface="client0").send(100))
    assert not subscriber.gaps
    metrics = fanout.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") >= 100)
    assert metrics.sum("rx_kernel_packets_total") == 0
    fanout.stop()


def test_ipv6_feed_and_subscribers(make_lab, make_fanout) -> None:
    lab = make_lab()
    host = lab.server["ipv6"]
    fanout = make_fanout(lab, "--tcp", address(host, TCP_PORT), feed=host)
    (subscriber,) = subscribe(lab, fanout, host)
    sender = Sender(lab, host)
    subscriber.read_to(sender.send(100))
    assert not subscriber.gaps
