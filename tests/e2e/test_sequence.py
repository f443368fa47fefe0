"""Sequenced feeds by `expressway recv`, over a veth: lines, gaps, re-requests, and the ring that readers in C read."""

import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.feed import SESSION, RerequestServer, client_socket, marker, message, packet, paced
from harness.lab import Lab
from harness.paths import BINARY, LIMIT
from harness.recv import PORT, Recv, probe, receivers
from harness.server import address

A, B = ("239.7.7.1", PORT), ("239.7.7.2", PORT + 1)
A6, B6 = ("ff15::7:1", PORT), ("ff15::7:2", PORT)
NETIO = Path(__file__).parents[2] / "crates" / "netio"


@pytest.fixture
def make_recv(make_lab, tmp_path: Path) -> Iterator[Callable[..., Recv]]:
    """Starts receivers of line A, and B where it is among the flags; at the end each has to be alive and to stop cleanly."""
    with receivers(tmp_path) as start:

        def make(lab: Lab, *flags: str, listen: str = address(*A), last: str = "") -> Recv:
            recv = start(lab, "--interface", "server0", *flags, listen=[listen])
            recv.wait_log(f"ready listen={last or listen}")
            return recv

        yield make


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example reader, compiled."""
    binary = tmp_path_factory.mktemp("reader") / "broadcast_reader"
    source = NETIO / "examples" / "c" / "broadcast_reader.c"
    command = ["cc", "-std=c11", "-Wall", "-Werror", "-O2", "-I", NETIO / "include", "-o", binary, source]
    subprocess.run(command, check=True, timeout=LIMIT)
    return binary


def two_lines(lab: Lab, mode: str, make_recv: Callable[..., Recv], *flags: str, at: tuple = (A, B)) -> Recv:
    """A receiver of both lines, as MoldUDP64."""
    a, b = (address(*line) for line in at)
    words = ["--io", mode, "--sequence", "moldudp64", "--line-b", b, *flags]
    return make_recv(lab, *words, listen=a, last=b)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_two_lines_that_lose_different_packets_are_one_feed(make_lab, make_recv, mode: str, family: int) -> None:
    lab = make_lab()
    at = (A, B) if family == socket.AF_INET else (A6, B6)
    # What one line lost is in time, however slow the machine is.
    recv = two_lines(lab, mode, make_recv, "--first", "1", "--hold", "30s", at=at)
    a, b = client_socket(lab, family=family), client_socket(lab, family=family)
    packets = []
    for number in range(1, 601, 3):
        # Some come in fragments, which are the kernel's.
        data = packet(number, 3, padded=number % 100 == 40)
        packets += [(number, a, at[0], data)] if number % 5 != 2 else []
        # Line B is behind by a few packets.
        packets += [(number + 20, b, at[1], data)] if number % 5 != 4 else []
    packets = [one[1:] for one in sorted(packets, key=lambda one: one[0])]
    markers = [(a, at[0], marker(601, 0)), (b, at[1], marker(601, 0)), (a, at[0], marker(601, 0xFFFF))]
    paced([*packets, *markers])
    time.sleep(0.2)
    report = recv.stop()
    sequence = report["sequence"]
    assert (sequence["messages"], sequence["lost"], sequence["gaps"], sequence["late"]) == (600, 0, 0, 0), sequence
    assert (sequence["session"], sequence["expected"], sequence["sessions"], sequence["ended"]) == ("TUESDAY", 601, 1, 1)
    lines = sequence["lines"]
    assert lines["A"]["first"] + lines["B"]["first"] == 600 and sequence["recovered"] > 0
    # What comes past AF_XDP may come later than what was sent behind it.
    assert all(120 <= line["skipped"] <= (132 if mode == "copy" else 120) for line in (lines["A"], lines["B"])), lines
    assert (lines["A"]["datagrams"], lines["B"]["datagrams"]) == (162, 161)
    assert (lines["A"]["heartbeats"], lines["B"]["heartbeats"]) == (2, 1)
    by = report["by"]
    assert (by["af_xdp"] > 300 and by["kernel"] >= 4) if mode == "copy" else by["kernel"] == 323, by


def test_what_both_lines_lose_is_announced_and_what_comes_later_is_late(make_lab, make_recv) -> None:
    lab = make_lab()
    recv = two_lines(lab, "udp", make_recv, "--hold", "20ms")
    a, b = client_socket(lab), client_socket(lab)
    paced([(a, A, packet(1, 10)), (b, B, packet(1, 10)), (a, A, packet(15, 2)), (b, B, packet(15, 2))])
    time.sleep(0.5)
    paced([(b, B, packet(12, 2)), (a, A, packet(12, 2)), (a, A, b"no packet at all")])
    time.sleep(0.2)
    report = recv.stop()
    sequence = report["sequence"]
    assert (sequence["messages"], sequence["late"], sequence["lost"]) == (12, 2, 4), sequence
    assert sequence["first_gaps"] == [[11, 4]]
    log = recv.log()
    assert "feed session" in log and "TUESDAY" in log, log
    assert "messages missing" in log, log
    assert sequence["lines"]["A"]["malformed"] == 1
    assert sequence["lines"]["A"]["duplicates"] + sequence["lines"]["B"]["duplicates"] == 14


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_what_all_lines_lose_comes_by_request(make_lab, make_recv, mode: str) -> None:
    lab = make_lab()
    server = RerequestServer(lab, 7000, lose=2)
    where = address(lab.client["ipv4"], 7000)
    flags = ["--sequence", "moldudp64", "--first", "1", "--rerequest", where, "--hold", "30s"]
    recv = make_recv(lab, "--io", mode, *flags)
    a = client_socket(lab)
    paced([(a, A, packet(number, 1)) for number in range(2, 101) if not 40 <= number < 60])
    deadline = time.monotonic() + LIMIT
    while len(server.requests) < 7 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    report = recv.stop()
    server.stop()
    sequence = report["sequence"]
    assert (sequence["messages"], sequence["lost"], sequence["late"]) == (100, 0, 0), sequence
    assert sequence["lines"]["reply"]["first"] == 21
    requests = sequence["rerequest"]
    assert (requests["requests"], requests["abandoned"]) == (len(server.requests), 0), requests
    assert requests["timeouts"] >= 2 and requests["replies"] >= 5, requests
    assert server.requests[0] == (SESSION, 1, 1) and (SESSION, 40, 20) in server.requests


def test_readers_of_the_ring_get_every_message_and_one_that_stops_holds_nobody_up(
    make_lab, make_recv, reader: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    path = tmp_path / "ring.sock"
    flags = ["--first", "1", "--hold", "30s", "--broadcast", str(path), "--broadcast-size", "128KiB", "--timestamps"]
    recv = two_lines(lab, "copy", make_recv, *flags)
    assert path.stat().st_mode & 0o777 == 0o600
    # In no namespace of the lab, and without a privilege: a unix socket is enough.
    start = [str(reader), str(path)]
    fast, slow = (subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2))
    for one in (fast, slow):
        assert one.stderr and "a ring of 131072 bytes" in one.stderr.readline()
    slow.send_signal(signal.SIGSTOP)
    a, b = client_socket(lab), client_socket(lab)
    for start_at in range(1, 2001, 50):
        batch = [(a, A, packet(number, 5)) for number in range(start_at, start_at + 50, 5) if number % 4 != 1]
        batch += [(b, B, packet(number, 5)) for number in range(start_at, start_at + 50, 5) if number % 4 != 2]
        paced(batch)
        # On a busy machine the reader that keeps up gets its turn too.
        time.sleep(0.02)
    time.sleep(0.3)
    report = recv.stop()
    # A record that says what session it is, and the messages.
    messages = [message(number) for number in range(1, 2001)]
    total = sum(sum(one) for one in messages) + sum(SESSION)
    size = sum(map(len, messages)) + len(SESSION)
    output, _ = fast.communicate(timeout=LIMIT)
    assert output == f"records 2001 bytes {size} lost 0 sum {total % 2**32} nic 0 xdp 2000 kernel 0\n", "the session has no stamp"
    slow.send_signal(signal.SIGCONT)
    output, _ = slow.communicate(timeout=LIMIT)
    words = output.split()
    read, lost = int(words[1]), int(words[5])
    assert read + lost == 2001 and lost > 0, output
    assert report["sequence"]["messages"] == 2000
    ring = report["broadcast"]
    assert (ring["records"], ring["readers_accepted"], ring["dropped_long"]) == (2001, 2, 0), ring
    assert not path.exists()


def test_datagrams_without_numbers_are_broadcast_as_they_come(make_lab, make_recv, reader: Path, tmp_path: Path) -> None:
    lab = make_lab()
    path = tmp_path / "ring.sock"
    recv = make_recv(lab, "--io", "udp", "--timestamps", "--broadcast", str(path))
    with subprocess.Popen([reader, path, "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        assert one.stderr and one.stderr.readline()
        a = client_socket(lab)
        datagrams = [message(number) for number in range(100)]
        paced([(a, A, data) for data in datagrams])
        output, _ = one.communicate(timeout=LIMIT)
    total = sum(sum(data) for data in datagrams)
    assert output == f"records 100 bytes {sum(map(len, datagrams))} lost 0 sum {total % 2**32} nic 0 xdp 0 kernel 100\n"
    assert recv.stop()["broadcast"]["records"] == 100


def test_plain_numbers_and_a_sender_that_begins_anew(make_lab, make_recv) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--io", "udp", "--sequence", "seq64", "--window", "64", "--hold", "20ms")
    a = client_socket(lab)
    paced([(a, A, probe(number)) for number in range(1000, 1200) if number != 1100])
    time.sleep(0.3)
    paced([(a, A, probe(number)) for number in range(100)])
    time.sleep(0.2)
    sequence = recv.stop()["sequence"]
    assert (sequence["messages"], sequence["resets"], sequence["lost"]) == (299, 1, 1), sequence
    assert (sequence["expected"], sequence["session"], sequence["first_gaps"]) == (100, None, [[1100, 1]])


def test_what_the_generator_sends_is_numbered(make_lab, make_recv) -> None:
    lab = make_lab()
    host = address(lab.server["ipv4"], PORT)
    recv = make_recv(lab, "--io", "copy", "--sequence", "seq64", "--line-b", address(*B), listen=host, last=address(*B))
    lab.run("client", BINARY, "gen", "udp", "--to", host, "--rate", "5000", "--count", "2000", "--io", "udp")
    time.sleep(0.2)
    sequence = recv.stop()["sequence"]
    assert (sequence["messages"], sequence["lost"], sequence["resets"]) == (2000, 0, 0), sequence


def test_a_receiver_that_is_killed_ends_its_readers_and_starts_again_at_the_same_path(
    make_lab, make_recv, reader: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    path = tmp_path / "ring.sock"
    recv = make_recv(lab, "--io", "copy", "--broadcast", str(path))
    a = client_socket(lab)
    for count in (7, 9):
        with subprocess.Popen([reader, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
            assert one.stderr and one.stderr.readline()
            paced([(a, A, message(number)) for number in range(count)])
            time.sleep(0.3)
            recv.process.kill()
            recv.wait()
            output, _ = one.communicate(timeout=LIMIT)
        # What was published is read to its end.
        assert output.startswith(f"records {count} "), output
        assert path.exists()
        recv.start()
        recv.wait_log(f"ready listen={address(*A)}")
    recv.stop()
    assert not path.exists()


def test_the_report_as_text(make_lab) -> None:
    lab = make_lab()
    host = lab.server["ipv4"]
    words = ["--sequence", "moldudp64", "--line-b", address(host, PORT + 1), "--first", "1", "--count", "4"]
    command = lab.inside("server", BINARY, "recv", "--listen", address(host, PORT), "--io", "udp", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for port in (PORT, PORT + 1):
            assert process.stdout.readline() == f"ready listen={host}:{port} io=udp stamps=none\n"
        a = client_socket(lab)
        paced([(a, (host, PORT), packet(1, 2)), (a, (host, PORT + 1), packet(1, 2)), (a, (host, PORT), packet(5, 1))])
        time.sleep(0.3)
        paced([(a, (host, PORT + 1), packet(5, 1))])
        output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    for part in (
        "sequence: 3 messages in order, 0 late, 0 recovered; 2 lost in 1 gaps",
        "session TUESDAY",
        "line A: 2 datagrams, ",
        "line B: 2 datagrams, ",
        "2 numbers skipped, 0 malformed, 0 stale",
        "gap: 2 messages starting at 3",
    ):
        assert part in output, output
    # Whichever line was read first.
    for words in (r"(\d+) messages first", r"(\d+) duplicates"):
        assert sum(map(int, re.findall(words, output))) == 3, output


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--line-b", "127.0.0.1:5001"], "--line-b: needs --sequence seq64 or moldudp64"),
        (["--rerequest", "127.0.0.1:1"], "--rerequest: needs --sequence seq64 or moldudp64"),
        (["--sequence", "seq64", "--rerequest", "127.0.0.1:1"], "--rerequest: needs --sequence moldudp64"),
        (["--sequence", "seq64", "--line-b", "127.0.0.1:5000"], "--line-b 127.0.0.1:5000: same address as --listen"),
        (["--sequence", "seq64", "--line-b", "127.0.0.1:0"], "port 0"),
        (["--sequence", "seq64", "--window", "0"], "--window = 0: must be 1 to 1048576"),
        (["--sequence", "seq64", "--listen", "127.0.0.1:5009"], "--line-b"),
        (["--broadcast", "/tmp/x.sock", "--broadcast-size", "100000"], "--broadcast-size 100000: must be a power of two"),
        (["--broadcast", "/tmp/x.sock", "--broadcast-size", "1KiB"], "--broadcast-size 1024: must be a power of two from 4096"),
    ],
)
def test_wrong_usage_is_one_line(flags: list[str], part: str) -> None:
    command = [BINARY, "recv", "--listen", "127.0.0.1:5000", "--io", "udp", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2 and part in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_path_that_cannot_be_bound_is_named() -> None:
    command = [BINARY, "recv", "--listen", "127.0.0.1:5000", "--io", "udp", "--broadcast", "/no/such/folder/ring"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1
    assert "--broadcast: reader socket /no/such/folder/ring: bind: ENOENT" in done.stderr, done.stderr
