"""Captures and `expressway top` at once, and under load: each sees everything, and what they look at loses nothing."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import bpf, foreign, kernel, links
from harness.captures import Dump, written
from harness.daemon import finish_all
from harness.lab import Lab
from harness.namespace import udp_socket
from harness.paths import LIMIT
from harness.recv import PORT, Peer, Recv, receivers
from harness.top import Top, packets, rows, tops

UDP = f"udp port {PORT}"


@pytest.fixture
def make_dump(tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures of the server's interface into files; at the end each has to be alive, unless the test has ended it, and to
    stop cleanly."""
    running: list[Dump] = []

    def make(lab: Lab, file: Path) -> Dump:
        running.append(Dump(lab, tmp_path / f"dump-{len(running)}", "server", "-i", links.SERVER, "-w", file, UDP))
        return running[-1]

    yield make
    finish_all(running)


@pytest.fixture
def make_top(tmp_path: Path) -> Iterator[Callable[..., Top]]:
    """Starts them."""
    with tops(tmp_path) as start:
        yield start


@pytest.fixture
def make_recv(tmp_path: Path) -> Iterator[Callable[..., Recv]]:
    """Starts receivers in the server's namespace."""
    with receivers(tmp_path) as start:

        def make(lab: Lab, mode: str) -> Recv:
            recv = start(lab, "--io", mode)
            recv.wait_ready()
            return recv

        yield make


def test_two_captures_and_a_top_see_each_packet(make_lab, make_dump, make_top, make_recv, tmp_path: Path) -> None:
    lab = make_lab()
    recv = make_recv(lab, "udp")
    files = [tmp_path / "one.pcapng", tmp_path / "two.pcapng"]
    dumps = [make_dump(lab, file) for file in files]
    top = make_top(lab, links.SERVER)
    sent = Peer(lab, lab.server["ipv4"]).send(700)
    ends = {"protocol": "udp", "local_port": PORT}
    top.wait_for(lambda one: any(packets(row["received"]) == sent for row in rows(one, **ends)), "all of them")
    assert recv.stop()["datagrams"] == sent
    for dump, file in zip(dumps, files, strict=True):
        assert dump.end() == len(written(file)) == sent
    # What a kernel refuses is told in its notes.
    assert not any("libbpf" in dump.log() for dump in dumps)
    first, second = ([frame for frame, _ in written(file)] for file in files)
    assert first == second


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_who_comes_and_goes_under_load_costs_no_packet(
    make_lab, make_dump, make_top, make_recv, tmp_path: Path, mode: str
) -> None:
    lab = make_lab()
    recv = make_recv(lab, mode)
    peer, over, sent = Peer(lab, lab.server["ipv4"]), threading.Event(), []

    def load() -> None:
        while not over.is_set():
            sent.append(peer.send(32))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for number in range(3):
            file = tmp_path / f"{number}.pcapng"
            dump, top = make_dump(lab, file), make_top(lab, links.SERVER)
            seen = len(sent)
            wait_until(lambda seen=seen: len(sent) > seen + 10)
            # One ends well, the other is killed.
            top.kill() if number % 2 else top.stop()
            captured = dump.end()
            # What goes to AF_XDP sockets is seen only where the kernel lets XDP programs be traced.
            assert captured == len(written(file)) and (captured > 100 or mode == "copy")
    finally:
        over.set()
        thread.join()
    report = recv.stop()
    assert report["datagrams"] == sum(sent) and not any(report["losses"].values()), report


def test_tools_that_are_killed_leave_nothing_at_an_xdp_program(make_lab, make_dump, make_top, tmp_path: Path) -> None:
    lab = make_lab()
    foreign.attach(lab, foreign.BUILT)
    file = tmp_path / "killed.pcapng"
    dump, stays, top = make_dump(lab, file), make_dump(lab, tmp_path / "stays.pcapng"), make_top(lab, links.SERVER)
    if dump.is_refused():
        kernel.lacks("this kernel refuses programs at entry and exit of others")
    top.wait_for(lambda document: document["program"] and document["program"]["traced"], "its hooks at the program")
    before = set(lab.programs("server"))
    objects = {*dump.objects(), *top.objects()}
    assert {kind for kind, _ in objects} == {"prog", "map", "link"}
    with udp_socket(lab.server_namespace, socket.AF_INET) as taker:
        taker.bind((lab.server["ipv4"], PORT))
        sent = Peer(lab, lab.server["ipv4"]).send(200)
        dump.kill()
        top.kill()
        wait_until(lambda: not any(bpf.exists(*each) for each in objects))
        assert set(lab.programs("server")) == before, "the program that they were attached to goes on"
        sent += Peer(lab, lab.server["ipv4"]).send(200)
    assert stays.end() == sent == len(written(tmp_path / "stays.pcapng"))
    foreign.detach(lab)
