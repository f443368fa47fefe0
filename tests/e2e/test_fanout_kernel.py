"""Forwarding in the kernel: the same feed and the same subscribers, with no process in between."""

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.agent import UNPRIVILEGED
from harness.fanout import FEED_PORT, TCP_PORT, Fanout, Sender, Subscriber, churn, descriptors, fanouts, subscribe
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT
from harness.server import address


@pytest.fixture
def make_fanout(make_lab, tmp_path: Path) -> Iterator[Callable[..., Fanout]]:
    """Starts fan-outs by the kernel with len32 framing; at the end each has to be alive and to stop cleanly."""
    with fanouts(tmp_path) as start:

        def make(
            lab: Lab, *flags: str, host: str | None = None, feed: str | None = None, prefix: tuple[str, ...] = (),
            ready: bool = True, framing: str = "len32",
        ) -> Fanout:
            host = host or lab.server["ipv4"]
            words = ("--mode", "kernel", "--udp", address(feed or host, FEED_PORT), "--framing", framing, *flags)
            fanout = start(lab, *words, "--tcp", address(host, TCP_PORT), prefix=prefix)
            return fanout.wait_ready() if ready else fanout

        yield make


def first(
    lab: Lab, fanout: Fanout, sender: Sender, subscribers: list[Subscriber], may_miss: bool = False
) -> None:
    """Sends until all of them have got something, and reads what came."""
    for subscriber in subscribers:
        subscriber.socket.settimeout(0.2)
        while True:
            last = sender.send()
            with contextlib.suppress(TimeoutError):
                subscriber.socket.recv(1, socket.MSG_PEEK)
                break
    for subscriber in subscribers:
        subscriber.socket.settimeout(LIMIT)
        subscriber.read_to(last)
        assert may_miss or not subscriber.gaps


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_a_unicast_feed_reaches_all_subscribers(make_lab, make_fanout, family: str) -> None:
    lab = make_lab()
    host = lab.server[family]
    fanout = make_fanout(lab, "--json", host=host)
    assert fanout.ready[0]["mode"] == "kernel" and fanout.ready[0]["io"] == "udp"
    subscribers = subscribe(lab, fanout, host, count=5)
    sender = Sender(lab, host)
    first(lab, fanout, sender, subscribers)
    last = sender.send(500)
    for subscriber in subscribers:
        subscriber.read_to(last)
        assert not subscriber.gaps
    metrics = fanout.wait_for("all counted", lambda m: m.sum("fanout_datagrams_total") == last + 1)
    assert metrics.sum("fanout_turned_total") == last + 1
    assert metrics.sum("fanout_connected_total") == 5
    fanout.wait_for("all taken", lambda m: m.sum("fanout_lag_bytes") == 0)
    top = json.loads(lab.run("server", BINARY, "top", "--once", "--interval", "300ms", "--json"))
    assert top["mode"] == "kernel" and len(top["subscribers"]) == 5
    assert all(one["datagrams"] >= 500 and one["rtt_seconds"] > 0 for one in top["subscribers"])
    fanout.stop()
    end = json.loads(fanout.output.splitlines()[-1])["statistics"]
    assert end["mode"] == "kernel" and end["disconnects"]["stopped"] == 5
    for subscriber in subscribers:
        assert subscriber.socket.recv(1) == b"", "no orderly end"
    assert_gone(lab, host)


def assert_gone(lab: Lab, host: str) -> None:
    """The interface is as it was: a datagram for the feed's address is one for whoever has that address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    plain = run_inside(lab.server_namespace, lambda: socket.socket(family, socket.SOCK_DGRAM))
    plain.settimeout(LIMIT)
    plain.bind((host, FEED_PORT))
    Sender(lab, host).send()
    assert len(plain.recv(2048)) >= 8
    plain.close()


@pytest.mark.parametrize("group", ["239.7.7.7", "ff15::7"])
@pytest.mark.parametrize("source", [False, True], ids=["any-source", "source-specific"])
def test_a_multicast_feed(make_lab, make_fanout, group: str, source: bool) -> None:
    lab = make_lab()
    client = lab.client["ipv6" if ":" in group else "ipv4"]
    fanout = make_fanout(lab, "--interface", "server0", *(["--source", client] if source else []), feed=group)
    subscribers = subscribe(lab, fanout, count=3)
    sender = Sender(lab, group, interface="client0")
    first(lab, fanout, sender, subscribers)
    last = sender.send(200)
    for subscriber in subscribers:
        subscriber.read_to(last)
        assert not subscriber.gaps
    fanout.wait_for("all counted", lambda m: m.sum("fanout_datagrams_total") == last + 1)


@pytest.mark.parametrize(("framing", "prefix"), [("len16", 2), ("none", 0)])
def test_the_other_framings(make_lab, make_fanout, framing: str, prefix: int) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--max-age", "1h", framing=framing)
    (subscriber,) = subscribe(lab, fanout)
    sender = Sender(lab, lab.server["ipv4"])

    def framed(content: bytes) -> bytes:
        return (len(content).to_bytes(prefix, "big") if prefix else b"") + content

    subscriber.socket.settimeout(0.2)
    received = b""
    while not received:
        sender.socket.send(b"go")
        with contextlib.suppress(TimeoutError):
            received = subscriber.socket.recv(1 << 16)
    subscriber.socket.settimeout(LIMIT)
    # Empty datagrams are told where the framing can tell them.
    sender.socket.send(b"")
    sender.socket.send(b"end")
    while not received.endswith(b"end"):
        received += subscriber.socket.recv(1 << 16)
    assert received.removesuffix(framed(b"") * bool(prefix) + framed(b"end")).replace(framed(b"go"), b"") == b""


def test_a_thousand_subscribers_come_and_go(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--max-lag", "64KiB", "--max-age", "1h", "--send-buffer", "16KiB", "--stall", "2s")
    opened = descriptors(fanout.process.pid)
    report = churn(lab)
    metrics = fanout.wait_for("all gone", lambda m: m.sum("fanout_subscribers") == 0)
    assert metrics.sum("fanout_disconnects_total") == metrics.sum("fanout_accepted_total") == 1000
    assert metrics.sum("fanout_connected_total") == 1000 and metrics.sum("fanout_events_lost_total") == 0
    # Programs count as they run, and the last datagrams may still be on their way.
    fanout.wait_for("all counted", lambda m: m.sum("fanout_datagrams_total") == report["sent"])
    # The connections that these numbers were asked over may be about to be closed.
    fanout.wait_for("descriptors closed", lambda _: descriptors(fanout.process.pid) <= opened + 1)


@pytest.mark.parametrize("policy", ["drop", "disconnect"])
def test_who_never_reads_delays_nobody_and_is_bounded(make_lab, make_fanout, policy: str) -> None:
    lab = make_lab()
    flags = ("--max-lag", "64KiB", "--max-age", "1h", "--send-buffer", "16KiB", "--slow-client", policy)
    fanout = make_fanout(lab, *flags)
    subscribers = subscribe(lab, fanout, count=2)
    sender = Sender(lab, lab.server["ipv4"])
    first(lab, fanout, sender, subscribers)
    reader, stalled = subscribers
    while "fell behind" not in fanout.log():
        reader.read_to(last := sender.send(50))
    for _ in range(20):
        reader.read_to(last := sender.send(50))
    assert not reader.gaps
    if policy == "disconnect":
        metrics = fanout.wait_for("its end", lambda m: m.sum("fanout_subscribers") == 1)
        assert metrics.sum("fanout_disconnects_total", reason="lag_bytes") == 1
        with pytest.raises((ConnectionResetError, EOFError)):
            stalled.read_to(last)
        return
    # It reads on, catches up, and is told what it missed.
    metrics = fanout.wait_for("what it missed", lambda m: m.sum("fanout_skipped_catching_up_total") > 100)
    assert metrics.sum("fanout_subscribers") == 2 and metrics.sum("fanout_lag_bytes_max") < 256 << 10
    stalled.socket.settimeout(0.5)
    while not stalled.gaps:
        with contextlib.suppress(TimeoutError):
            stalled.read_to(last)
        reader.read_to(last := sender.send())
    stalled.socket.settimeout(LIMIT)
    stalled.read_to(last)
    metrics = fanout.wait_for("the gap", lambda m: m.sum("fanout_gaps_total") == 1)
    assert metrics.sum("fanout_skipped_frames_total") == sum(stalled.gaps)


def test_the_ways_to_leave(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, "--stall", "3s")
    stays, resets, closes, half, garbage = subscribe(lab, fanout, count=5)
    # While the feed pauses: a reset shows at once, an end after a time, in both modes alike.
    resets.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    resets.close()
    fanout.wait_for("the reset", lambda m: m.sum("fanout_disconnects_total", reason="reset") == 1)
    closes.close()
    fanout.wait_for("the end", lambda m: m.sum("fanout_disconnects_total", reason="closed") == 1)
    garbage.socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            garbage.socket.send(b"\xff" * 65536)
    half.socket.shutdown(socket.SHUT_WR)
    fanout.wait_for("its half", lambda m: m.sum("fanout_subscribers_half_closed") == 1)
    sender = Sender(lab, lab.server["ipv4"])
    first(lab, fanout, sender, [stays, half, garbage])
    last = sender.send(50)
    for subscriber in (stays, half, garbage):
        subscriber.read_to(last)
        assert not subscriber.gaps
    # Who closes while the feed runs is gone with the next datagram.
    garbage.close()

    def gone(metrics) -> bool:
        last = sender.send()
        stays.read_to(last)
        half.read_to(last)
        return metrics.sum("fanout_subscribers") == 2

    fanout.wait_for("its end", gone)


def test_what_cannot_be_forwarded_is_counted(make_lab, make_fanout) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    fanout = make_fanout(lab, "--source", lab.client["ipv4"])
    (subscriber,) = subscribe(lab, fanout)
    sender = Sender(lab, host)
    first(lab, fanout, sender, [subscriber])
    # A fragmented datagram is put together behind the place where feeds are turned.
    sender.socket.send(bytes(4000))
    fanout.wait_for("the fragments", lambda m: m.sum("fanout_dropped_unforwarded_total") == 1)
    lab.run("client", "ip", "address", "add", "192.0.2.77/32", "dev", "client0")
    lab.run("server", "ip", "route", "add", "192.0.2.77/32", "dev", "server0")
    other = run_inside(lab.client_namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    other.bind(("192.0.2.77", 0))
    other.sendto(b"foreign", (host, FEED_PORT))
    fanout.wait_for("the stranger", lambda m: m.sum("fanout_dropped_source_total") == 1)
    subscriber.read_to(sender.send())
    assert not subscriber.gaps


def test_the_interface_of_a_unicast_feed_goes_and_returns(make_lab, make_fanout) -> None:
    lab = make_lab()
    lab.add_extra_link()
    fanout = make_fanout(lab, feed="198.51.100.1")
    subscribers = subscribe(lab, fanout, count=2)
    sender = Sender(lab, "198.51.100.1")
    first(lab, fanout, sender, subscribers)
    lab.run("server", "ip", "link", "delete", "extra0")
    fanout.wait_log("multicast group lost")
    lab.add_extra_link()
    fanout.wait_for("the interface", lambda m: m.sum("fanout_interface_returns_total") == 1)
    fanout.wait_for("the group", lambda m: m.sum("fanout_group_rejoins_total") == 1)
    again = Sender(lab, "198.51.100.1")
    again.next = sender.next
    # The group is joined again for one subscriber after the other.
    first(lab, fanout, again, subscribers, may_miss=True)
    last = again.send(50)
    for subscriber in subscribers:
        subscriber.read_to(last)


def test_killed_and_started_again(make_lab, make_fanout) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    fanout = make_fanout(lab)
    before = subscribe(lab, fanout, count=2)
    sender = Sender(lab, host)
    first(lab, fanout, sender, before)
    fanout.kill()
    with pytest.raises((EOFError, ConnectionResetError)):
        before[0].read_to(sender.next)
    assert_gone(lab, host)
    fanout.start()
    fanout.wait_ready()
    after = subscribe(lab, fanout, count=2)
    first(lab, fanout, sender, after)


def test_without_descriptors_newcomers_are_turned_away_and_subscribers_stay(make_lab, make_fanout) -> None:
    lab = make_lab()
    fanout = make_fanout(lab, prefix=("prlimit", "--nofile=60:60"))
    host = lab.server["ipv4"]
    stays = subscribe(lab, fanout, count=5)
    sender = Sender(lab, host)
    first(lab, fanout, sender, stays)
    crowd = [Subscriber(lab, host) for _ in range(60)]
    # Asking it now would take a descriptor too.
    fanout.wait_log("Too many open files")
    last = sender.send(50)
    for subscriber in stays:
        subscriber.read_to(last)
        assert not subscriber.gaps
    for subscriber in crowd:
        subscriber.close()
    # Who has gone is found by what is sent to it.
    for _ in range(10):
        sender.send()
        time.sleep(0.1)

    def room(metrics) -> bool:
        sender.send()
        return metrics.sum("fanout_subscribers") == 5

    fanout.wait_for("room again", room)
    # The last of the crowd may still be in the queue before who comes now.
    deadline = time.monotonic() + LIMIT
    while True:
        newcomer = Subscriber(lab, host)
        newcomer.socket.settimeout(1)
        time.sleep(0.2)
        with contextlib.suppress(EOFError, ConnectionResetError, TimeoutError):
            newcomer.read_to(sender.send())
            break
        assert time.monotonic() < deadline, fanout.log()


def test_without_privilege_it_says_what_it_takes(make_lab, make_fanout) -> None:
    fanout = make_fanout(make_lab(), prefix=UNPRIVILEGED, ready=False)
    assert fanout.wait() == 1
    assert "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON" in fanout.log(), fanout.log()


KERNEL = ["--mode", "kernel", "--udp", "192.0.2.1:5000", "--tcp", "127.0.0.1:9000"]
WRONG = [
    (["--ws", "127.0.0.1:9002"], "--mode kernel: ws subscribers"),
    (["--start", "last:5"], "--mode kernel: the kernel retains no data"),
    (["--snapshot-prefix", "00"], "snapshots are not supported"),
    (["--threads", "2"], "threads must be 1"),
    (["--io", "copy"], "--io copy: not available with --mode kernel"),
    (["--agent", "agent.sock"], "--agent: an agent provides no forwarding programs"),
    ([], "--interface: mode kernel"),
]


@pytest.mark.parametrize(("flags", "complaint"), WRONG, ids=[complaint for _, complaint in WRONG])
def test_what_the_kernel_cannot_do_is_refused(flags: list[str], complaint: str) -> None:
    command = [BINARY, "fanout", *KERNEL, *flags]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert result.returncode == 2, result
    assert complaint in result.stderr and result.stdout == "", result.stderr
