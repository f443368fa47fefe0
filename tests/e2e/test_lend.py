"""`expressway recv --lend`: packets read by other processes, in C, where AF_XDP took them, over a veth."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.lab import Lab
from harness.paths import BINARY, LIMIT
from harness.recv import Peer, Recv, probe, receivers

NETIO = Path(__file__).parents[2] / "crates" / "netio"


@pytest.fixture
def make_recv(make_lab, tmp_path: Path) -> Iterator[Callable[..., Recv]]:
    """Starts receivers that lend from the folder `umem`; at the end each has to be alive and to stop cleanly."""
    folder = tmp_path / "umem"
    folder.mkdir()
    with receivers(tmp_path) as start:

        def make(lab: Lab, *flags: str) -> Recv:
            recv = start(lab, "--io", "copy", "--lend", str(folder), *flags)
            recv.wait_ready()
            return recv

        yield make


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example reader, compiled."""
    binary = tmp_path_factory.mktemp("reader") / "datagram_reader"
    source = NETIO / "examples" / "c" / "datagram_reader.c"
    command = ["cc", "-std=c11", "-Wall", "-Werror", "-O2", "-I", NETIO / "include", "-o", binary, source]
    subprocess.run(command, check=True, timeout=LIMIT)
    return binary


def connected(binary: Path, path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A reader that has been let in."""
    one = subprocess.Popen([binary, path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert one.stderr
    line = one.stderr.readline()
    assert line.startswith(b"connected: "), line
    return one


def read_out(output: bytes) -> list[tuple[int, int, bytes, bytes]]:
    """What a reader printed: (number, time stamp, whose, payload) of each datagram, by its length: a payload may hold any byte."""
    datagrams = []
    while output:
        number, stamp, clock, length, rest = output.split(b" ", 4)
        size = int(length)
        payload, end, output = rest[:size], rest[size : size + 1], rest[size + 1 :]
        assert (len(payload), end) == (size, b"\n"), "a datagram is printed whole"
        datagrams.append((int(number), int(stamp), clock, payload))
    return datagrams


def test_a_reader_sees_datagrams_and_their_stamps_where_they_lie(make_lab, make_recv, reader: Path, tmp_path: Path) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--timestamps", "--sequence", "seq64")
    path = tmp_path / "umem" / "server0.0"
    one = connected(reader, path, "300")
    peer = Peer(lab, lab.server["ipv4"])
    before = time.clock_gettime_ns(time.CLOCK_TAI)
    payloads = [b"%08d" % number + bytes(range(48, 48 + number % 60)) for number in range(300)]
    for payload in payloads:
        peer.socket.send(payload)
        time.sleep(0.0005)
    output, _ = one.communicate(timeout=LIMIT)
    numbers, stamps, clocks, read = zip(*read_out(output), strict=True)
    assert set(clocks) == {b"xdp"}
    assert list(numbers) == list(range(300))
    assert before < stamps[0] and list(stamps) == sorted(stamps) and stamps[-1] < time.clock_gettime_ns(time.CLOCK_TAI)
    assert list(read) == payloads
    report = recv.stop()
    lend = report["lend"]
    assert (report["datagrams"], lend["lent"], lend["dropped_quota"], lend["bad_returns"]) == (300, 300, 0, 0), lend
    assert (lend["readers_accepted"], lend["not_lent_kernel"], lend["not_lent_multi_frame"]) == (1, 0, 0), lend
    assert not path.exists()


def test_a_reader_that_stops_or_dies_holds_nobody_up(make_lab, make_recv, reader: Path, tmp_path: Path) -> None:
    lab = make_lab()
    recv = make_recv(lab, "--lend-readers", "1", "--lend-quota", "64", "--ring", "256")
    path = tmp_path / "umem" / "server0.0"
    stopped = connected(reader, path)
    stopped.send_signal(signal.SIGSTOP)
    second = subprocess.run([reader, path], capture_output=True, text=True, timeout=LIMIT)
    assert second.returncode == 1 and second.stderr, "only one is let in"
    peer = Peer(lab, lab.server["ipv4"])
    sent = peer.send(3000)
    time.sleep(0.2)
    stopped.kill()
    stopped.communicate(timeout=LIMIT)
    time.sleep(0.1)
    another = connected(reader, path, "50")
    for number in range(50):
        peer.socket.send(probe(number))
    output, _ = another.communicate(timeout=LIMIT)
    assert len(read_out(output)) == 50, "frames are there for it"
    report = recv.stop()
    lend = report["lend"]
    assert report["datagrams"] == sent + 50
    assert (lend["lent"], lend["dropped_quota"]) == (64 + 50, sent - 64), lend
    assert (lend["readers_accepted"], lend["readers_refused"]) == (2, 1), lend
    assert lend["readers_gone"] == 2, "the one that was killed and the one that ended by itself"
    assert lend["frames_reclaimed"] >= 64, lend
    assert report["fill_ring_empty"] == 0
    assert not any(report["losses"].values()), report["losses"]


def test_readers_of_a_receiver_that_is_killed_end_and_the_next_one_is_at_the_same_path(
    make_lab, make_recv, reader: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    recv = make_recv(lab)
    path = tmp_path / "umem" / "server0.0"
    peer = Peer(lab, lab.server["ipv4"])
    for count in (7, 9):
        one = connected(reader, path)
        peer.send(count)
        time.sleep(0.3)
        recv.process.kill()
        recv.wait()
        output, _ = one.communicate(timeout=LIMIT)
        assert len(read_out(output)) == count
        recv.start()
        recv.wait_ready()
    recv.stop()
    assert not path.exists()


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--lend", "/tmp", "--io", "udp"], "--lend /tmp: kernel sockets have no frames to lend"),
        (["--lend", "/tmp", "--agent", "/run/agent.sock"], "--lend /tmp: frames of an agent's sockets cannot be lent"),
        (["--lend", "/tmp", "--source", "127.0.0.2"], "--lend /tmp: --source does not apply to lent packets"),
        (["--lend", "/no/such/folder"], "--lend /no/such/folder: no such directory"),
        (["--lend", "/tmp", "--lend-readers", "33"], "33 is not in 1..=32"),
        (["--lend", "/tmp", "--lend-quota", "0"], "0 is not in 1..=32768"),
    ],
)
def test_what_cannot_be_lent_is_refused(flags: list[str], error: str) -> None:
    command = [BINARY, "recv", "--listen", "127.0.0.1:5000", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2 and error in done.stderr, done.stderr
