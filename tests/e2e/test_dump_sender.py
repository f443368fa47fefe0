"""`expressway dump` of what another program sends by AF_XDP in copy mode: TX metadata, several descriptors, what is not taken.

Files are read without Wireshark, which the guest does not have."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import captures, kernel, links, xsk
from harness.captures import Dump, dumps
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT, run
from harness.xsk import Xsk

# Of the datagrams that captures.frame makes.
FILTER = "udp port 50000"


@pytest.fixture
def make_dump(tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures of the server's interface."""
    with dumps(tmp_path) as start:

        def make(lab: Lab, *words: str | Path) -> Dump:
            made = start(lab, "server", "-i", links.SERVER, *words)
            if made.is_refused():
                kernel.lacks("this kernel lets nobody trace what AF_XDP sockets send")
            return made

        yield make


@pytest.fixture
def make_sender() -> Iterator[Callable[..., Xsk]]:
    """Sockets on the server's interface, which end with their test."""
    made: list[Xsk] = []

    def make(lab: Lab, **options: int) -> Xsk:
        made.append(run_inside(lab.server_namespace, lambda: Xsk(links.SERVER, **options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def wait_lines(dump: Dump, count: int) -> list[str]:
    """Its lines, once there are as many."""
    deadline = time.monotonic() + LIMIT
    while len(dump.lines()) < count:
        assert time.monotonic() < deadline, dump.lines()
        time.sleep(0.02)
    return dump.lines()


# What is asked for, and how it is told.
ASKED = [
    (None, None),
    ((0, 0, 0, 0), None),
    ((xsk.CHECKSUM, 34, 6, 0), "checksum=34+6"),
    ((xsk.TIMESTAMP, 0, 0, 0), "timestamp"),
    ((xsk.LAUNCH_TIME, 0, 0, 1 << 60), f"launch={1 << 60}"),
    ((xsk.CHECKSUM | xsk.TIMESTAMP | xsk.LAUNCH_TIME, 34, 6, 7), "checksum=34+6 timestamp launch=7"),
]


@pytest.mark.parametrize("umem_flags", [0, xsk.XDP_UMEM_TX_SW_CSUM], ids=["device", "software"])
def test_what_descriptors_ask_the_device_for_is_told(
    make_lab, make_dump, make_sender, tmp_path: Path, umem_flags: int
) -> None:
    lab = make_lab()
    sender = make_sender(lab, metadata=xsk.METADATA.size, umem_flags=umem_flags)
    file = tmp_path / "a.pcapng"
    dump, text, documents = make_dump(lab, "-w", file, FILTER), make_dump(lab, FILTER), make_dump(lab, "--json", FILTER)
    for number, (asked, _) in enumerate(ASKED):
        sender.send(captures.frame(number), asked)
    lines = wait_lines(text, len(ASKED))
    told = [json.loads(line) for line in wait_lines(documents, len(ASKED))]
    for one in (dump, text, documents):
        assert one.end() == len(ASKED)
    process = f"pid {os.getpid()} "
    comments = [comment for _, comment in captures.written(file)]
    assert len(comments) == len(ASKED)
    for (_, wanted), comment, line in zip(ASKED, comments, lines, strict=True):
        assert comment.startswith(f"xsk copy, tx metadata {wanted}, {process}" if wanted else f"xsk copy, {process}"), comment
        assert (f"[tx metadata {wanted}]" in line) if wanted else "metadata" not in line, line
    assert [document.get("tx_metadata") for document in told[:3]] == [
        None, None, {"checksum": {"csum_start": 34, "csum_offset": 6}, "timestamp": False, "launch_time": None},
    ]  # fmt: skip
    assert told[-1]["tx_metadata"]["timestamp"] is True and told[-1]["tx_metadata"]["launch_time"] == "7"
    # The file says the same when it is read.
    again = run([BINARY, "dump", "-r", file]).splitlines()
    assert [line.split("[tx metadata ")[-1].split("]")[0] for line in again if "metadata" in line] == [
        wanted for _, wanted in ASKED if wanted
    ]


def test_a_packet_of_several_descriptors_is_shown_whole(make_lab, make_dump, make_sender, tmp_path: Path) -> None:
    lab = make_lab(mtu=9000)
    sender = make_sender(lab, flags=xsk.XDP_COPY | xsk.XDP_USE_SG, metadata=xsk.METADATA.size)
    whole, cut, theirs = tmp_path / "whole.pcapng", tmp_path / "cut.pcapng", tmp_path / "theirs.pcapng"
    one, other = make_dump(lab, "-w", whole, FILTER), make_dump(lab, "-w", cut, "-s", "2500", FILTER)
    # A filter that needs an octet of the second descriptor is decided in user space.
    late = make_dump(lab, "-w", theirs, f"{FILTER} and ether[3500] = 0xfe and ether[4000] = 0xfe")
    frames = [captures.frame(number, size) for number, size in enumerate((100, 3000, 4500, 7900))]
    for frame in frames:
        parts = [frame[at : at + 2000] for at in range(0, len(frame), 2000)]
        sender.send(parts, (xsk.CHECKSUM, 34, 6, 0))
    assert one.end() == other.end() == len(frames)
    assert late.end() == 2
    assert [data for data, _ in captures.written(whole)] == frames
    assert {comment.split(", pid")[0] for _, comment in captures.written(whole)} == {"xsk copy, tx metadata checksum=34+6"}
    assert [data for data, _ in captures.written(cut)] == [frame[:2500] for frame in frames]
    assert [data for data, _ in captures.written(theirs)] == frames[2:]
    documents = run([BINARY, "dump", "-r", cut, "--json"]).splitlines()
    assert [json.loads(one)["length"] for one in documents] == [len(frame) for frame in frames]


def test_what_a_device_does_not_take_is_told(make_lab, make_dump, make_sender, tmp_path: Path) -> None:
    lab = make_lab()
    sender = make_sender(lab)
    file = tmp_path / "a.pcapng"
    dump = make_dump(lab, "-w", file, FILTER)
    sender.send(captures.frame(0))
    # Without a carrier the device takes nothing (__dev_direct_xmit in net/core/dev.c).
    links.ip(lab, "client", f"link set {links.CLIENT} down")
    sender.send(captures.frame(1))
    links.ip(lab, "client", f"link set {links.CLIENT} up")
    sender.send(captures.frame(2))
    assert dump.end() == 3
    reasons = [comment.partition("dropped: ")[2].split(",")[0] for _, comment in captures.written(file)]
    assert reasons == ["", "tx-refused", ""]
