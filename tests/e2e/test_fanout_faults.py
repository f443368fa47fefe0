"""What a fan-out bears: interfaces that go, subscribers that leave, stall or crowd, its own end, wrong usage."""

import socket
import subprocess
import time

import pytest
from harness.fanout import Sender, Subscriber, churn, descriptors, subscribe
from harness.paths import BINARY, LIMIT
from harness.server import address


@pytest.mark.parametrize("mode", ["udp", "copy"])
def test_a_multicast_feed_survives_the_loss_of_its_interface(make_lab, make_fanout, mode: str) -> None:
    lab = make_lab()
    lab.add_extra_link()
    fanout = make_fanout(lab, "--interface", "extra0", "--io", mode, feed="239.7.7.7")
    (subscriber,) = subscribe(lab, fanout)
    subscriber.read_to(Sender(lab, "239.7.7.7", interface="extra1").send(10))
    lab.run("server", "ip", "link", "delete", "extra0")
    fanout.wait_log("multicast group lost")
    lab.add_extra_link()
    fanout.wait_for("rejoined", lambda m: m.sum("fanout_group_rejoins_total") == 1)
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
    report = churn(lab)
    # Who has left is gone, one and all, with what it held.
    sender = Sender(lab, lab.server["ipv4"])

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
    while fanout.log().count("fell behind") < 2:
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


WRONG = [
    (["--udp", "127.0.0.1:0", "--tcp", "127.0.0.1:9000"], "port 0"),
    (["--udp", "127.0.0.1:5000"], "no listen address"),
    (["--udp", "127.0.0.1:5000", "--tls", "127.0.0.1:9000"], "--certificate"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--mode", "both"], "not one of auto, user, kernel"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--framing", "len8"], "len16"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--slow-client", "wait"], "neither drop nor disconnect"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--ring", "1MiB"], "--ring is 1048576"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--interface", "lo"], "not a multicast group"),
    (["--udp", "127.0.0.1:5000", "--tcp", "127.0.0.1:9000", "--source", "::1"], "address family"),
    (["--udp", "239.1.1.1:5000", "--tcp", "127.0.0.1:9000", "--io", "copy"], "arrives on: --interface"),
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
