"""`expressway dump`: what it loses is in the file, what it does not lose is in order, and what it attached goes when it ends."""

import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import bpf, captures, links
from harness.captures import Dump, dumps
from harness.lab import Lab
from harness.namespace import udp_socket
from harness.paths import BINARY, LIMIT
from harness.top import tops

PORT = 7000
FILTER = f"udp dst port {PORT}"


@pytest.fixture
def make_dump(tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures in the server's namespace."""
    with dumps(tmp_path) as start:
        yield lambda lab, *words: start(lab, "server", *words)


class Feed:
    """Numbered datagrams from the client's kernel to a socket that nobody reads."""

    def __init__(self, lab: Lab, host: str | None = None) -> None:
        self.to = (host or lab.server["ipv4"], PORT)
        self._taker = udp_socket(lab.server_namespace, socket.AF_INET)
        self._taker.bind(self.to)
        self._sender = udp_socket(lab.client_namespace, socket.AF_INET)
        self.sent = 0

    def send(self, count: int, size: int = 100) -> None:
        """The next ones."""
        for _ in range(count):
            self._sender.sendto(struct.pack("!I", self.sent).ljust(size, b"\xa5"), self.to)
            self.sent += 1


def statistics(file: Path) -> dict[int, int]:
    """The counters of a file's only interface statistics block."""
    data, offset, found = file.read_bytes(), 0, []
    while offset < len(data):
        kind, size = struct.unpack_from("<II", data, offset)
        if kind == 5:
            option, counters = offset + 20, {}
            while (code := struct.unpack_from("<HH", data, option))[0]:
                if code[1] == 8:
                    counters[code[0]] = struct.unpack_from("<Q", data, option + 4)[0]
                option += 4 + (code[1] + 3) // 4 * 4
            found.append(counters)
        offset += size
    (one,) = found
    return one


# isb_ifrecv, isb_ifdrop, isb_filteraccept, isb_usrdeliv (draft-ietf-opsawg-pcapng, section 4.6).
RECEIVED, DROPPED, ACCEPTED, DELIVERED = 4, 5, 6, 8


def told_lost(file: Path) -> int:
    """Packets lost by the word of those behind them, as Wireshark reads it (epb_dropcount)."""
    return sum(int(row[0]) for row in captures.tshark(file, "frame.drop_count") if row[0])


def test_losses_stand_in_the_file_where_they_happened(make_lab, make_dump, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "a.pcapng"
    feed = Feed(lab)
    dump = make_dump(lab, "-i", links.SERVER, "-B", "64", "-U", "-w", file, FILTER)
    feed.send(10)
    deadline = time.monotonic() + LIMIT
    while captures.count(file) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # Nobody empties the buffers.
    dump.process.send_signal(signal.SIGSTOP)
    feed.send(3000, 500)
    dump.process.send_signal(signal.SIGCONT)
    while not told_lost(file):
        assert time.monotonic() < deadline, dump.log()
        feed.send(1)
        time.sleep(0.1)
    dump.stop()
    captured, lost = dump.counts()
    assert captured + lost == feed.sent and lost > 1000
    assert captures.count(file) == captured
    numbers = [int(row[0][:8], 16) for row in captures.tshark(file, "udp.payload")]
    missing = set(range(feed.sent)) - set(numbers)
    assert len(missing) == lost and numbers == sorted(numbers)
    # All of them are told by the first packet that came after the losses were read.
    assert told_lost(file) == lost
    counters = statistics(file)
    assert (counters[DROPPED], counters[DELIVERED], counters[ACCEPTED]) == (lost, captured, captured + lost)
    assert counters[RECEIVED] >= counters[ACCEPTED]


def test_packets_of_cpus_queues_and_interfaces_are_in_one_order(make_lab, make_dump, tmp_path: Path) -> None:
    lab, file = make_lab(queues=2), tmp_path / "a.pcapng"
    lab.add_extra_link()
    # Each has one of its own device and CPU; the two on one device, a queue each by XPS or by their flow.
    feeds = [Feed(lab), Feed(lab, "198.51.100.1")]
    dump = make_dump(lab, "-i", links.SERVER, "-i", "extra0", "-w", file, FILTER)
    cpus = sorted(os.sched_getaffinity(0))
    others = [udp_socket(lab.client_namespace, socket.AF_INET) for _ in range(16)]

    together = threading.Barrier(2, timeout=LIMIT)

    def send(number: int) -> None:
        os.sched_setaffinity(0, {cpus[number % len(cpus)]})
        for turn in range(300):
            together.wait()
            feeds[number].send(1)
            if number == 0:
                # Other flows take other queues.
                others[turn % len(others)].sendto(b"\xff" * 40, feeds[0].to)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in others:
        one.close()
    assert dump.end() == 900
    rows = captures.tshark(file, "frame.time_epoch", "frame.interface_name", "frame.interface_queue", "udp.payload")
    times = [row[0] for row in rows]
    assert times == sorted(times)
    names = [row[1] for row in rows]
    assert (names.count(links.SERVER), names.count("extra0")) == (600, 300)
    changes = sum(one != other for one, other in zip(names, names[1:], strict=False))
    assert changes > 20, "they came side by side"
    assert {row[2] for row in rows if row[1] == links.SERVER} == {"0", "1"}
    assert {row[2] for row in rows if row[1] == "extra0"} == {"0"}
    for name in (links.SERVER, "extra0"):
        own = [int(row[3][:8], 16) for row in rows if row[1] == name and not row[3].startswith("ff")]
        assert own == list(range(300)), name


def test_what_the_kernel_drops_is_shown_once_more_with_its_reason(make_lab, make_dump, tmp_path: Path) -> None:
    lab, file = make_lab(), tmp_path / "a.pcapng"
    text, plain = make_dump(lab, "-i", links.SERVER, "--drops", "-w", file, "--print", FILTER), make_dump(
        lab, "-i", links.SERVER, "--json", FILTER
    )
    documents = make_dump(lab, "-i", links.SERVER, "--drops", "--json", FILTER)
    with udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        for number in range(5):
            sender.sendto(bytes([number] * 50), (lab.server["ipv4"], PORT))
    assert plain.end() == 5, "only with --drops"
    assert documents.end() == text.end() == captures.count(file) == 10
    told = [json.loads(line) for line in documents.lines()]
    reasons = [one.get("dropped") for one in told]
    assert reasons.count("no_socket") == reasons.count(None) == 5, reasons
    comments = [row[0] for row in captures.tshark(file, "frame.comment")]
    assert comments.count("dropped: no_socket") == comments.count("") == 5, comments
    assert sum(line.endswith("[dropped: no_socket]") for line in text.lines()) == 5


def test_wireshark_captures_live_from_its_output(make_lab, tmp_path: Path) -> None:
    lab = make_lab()
    feed = Feed(lab)
    log = tmp_path / "dump.log"
    command = lab.inside("server", BINARY, "dump", "-i", links.SERVER, "-w", "-", FILTER)
    fields = ["-T", "fields", "-e", "udp.dstport", "-e", "frame.interface_name"]
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as dump,
        subprocess.Popen(["tshark", "-n", "-l", "-i", "-", "-c", "7", *fields], stdin=dump.stdout,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as reader,
    ):  # fmt: skip
        assert dump.stdout
        dump.stdout.close()
        deadline = time.monotonic() + LIMIT
        # It ends by itself, and the capture with it.
        while reader.poll() is None:
            assert time.monotonic() < deadline, log.read_text()
            feed.send(1)
            time.sleep(0.05)
        assert reader.stdout and reader.stdout.read().splitlines() == [f"{PORT}\t{links.SERVER}"] * 7
        while dump.poll() is None:
            assert time.monotonic() < deadline, "its reader has gone"
            feed.send(1)
            time.sleep(0.05)
        assert dump.returncode == 0, log.read_text()


@pytest.mark.parametrize("tool", ["dump", "top"])
def test_nothing_is_left_when_it_ends_well(make_lab, make_dump, tmp_path: Path, tool: str) -> None:
    lab = make_lab()
    if tool == "dump":
        running = make_dump(lab, "-i", links.SERVER, "--drops", FILTER)
        objects = running.objects()
        running.end()
    else:
        with tops(tmp_path) as make_top:
            running = make_top(lab, links.SERVER)
            objects = running.objects()
            running.stop()
    assert {kind for kind, _ in objects} == {"prog", "map", "link"}
    deadline = time.monotonic() + LIMIT
    # Programs go after a grace period of RCU.
    while left := [each for each in objects if bpf.exists(*each)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
