"""`expressway dump` and `top` of an interface that XDP programs redirect frames to: programs of nobody of ours, and live frames."""

import json
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import kernel, links, xdp_program
from harness.captures import Dump, dumps, written
from harness.lab import Lab
from harness.namespace import run_inside, udp_socket
from harness.paths import BINARY, LIMIT, run
from harness.server import address
from harness.top import Top, dropped, octets, packets, rows, tops

PORT, COUNT = 7000, 40
# Asked for until everybody is known to look; not counted.
WARM_UP = 7001
# linux/if_ether.h
ETH_P_IP = 0x0800
FILTER = f"udp dst port {PORT}"


@pytest.fixture
def make_dump(tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures."""
    with dumps(tmp_path) as start:

        def make(lab: Lab, role: str, *words: str | Path) -> Dump:
            made = start(lab, role, *words)
            if made.is_refused() or "bq_xmit_all" in made.log():
                kernel.lacks("this kernel lets nobody trace what XDP programs redirect")
            return made

        yield make


@pytest.fixture
def make_top(tmp_path: Path) -> Iterator[Callable[..., Top]]:
    """Starts them."""
    with tops(tmp_path) as start:

        def make(lab: Lab, *words: str, **options: str) -> Top:
            made = start(lab, *words, **options)
            made.needs_tracing()
            return made

        yield make


def known(lab: Lab) -> None:
    """The client knows the server for good: programs that redirect everything take what it would be asked by."""
    (link,) = json.loads(lab.run("server", "ip", "-json", "link", "show", links.SERVER))
    lab.run("client", "ip", "neigh", "replace", lab.server["ipv4"], "lladdr", link["address"], "dev", links.CLIENT)


@contextmanager
def device(lab: Lab, name: str) -> Iterator[tuple[int, socket.socket]]:
    """A device of the server to redirect to: its index, and a socket of what comes out of its other end."""
    other = f"{name}-end"
    links.ip(lab, "server", f"link add {name} type veth peer name {other}")
    for one in (name, other):
        links.ip(lab, "server", f"link set {one} up")
        # Only then does the other end take XDP frames (veth_set_features in drivers/net/veth.c).
        lab.run("server", "ethtool", "-K", one, "gro", "on")

    def make() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.bind((other, ETH_P_IP))
        return made

    with run_inside(lab.server_namespace, make) as end:
        yield int(lab.run("server", "cat", f"/sys/class/net/{name}/ifindex")), end


def taken(end: socket.socket, count: int, port: int = PORT) -> list[bytes]:
    """So many frames to that port, or fewer if they do not come."""
    found: list[bytes] = []
    deadline = time.monotonic() + LIMIT
    while len(found) < count and (left := deadline - time.monotonic()) > 0:
        if select.select([end], [], [], left)[0]:
            frame = end.recv(65536)
            if len(frame) >= 42 and frame[23] == 17 and struct.unpack_from("!H", frame, 36)[0] == port:
                found.append(frame)
    return found


def send(lab: Lab, port: int, count: int) -> None:
    """Datagrams of different lengths from the client to the server."""
    with udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        for number in range(count):
            sender.sendto(struct.pack("!I", number).ljust(100 + number * 7), (lab.server["ipv4"], port))


def warm(lab: Lab, dump: Dump, marks: Sequence[str]) -> None:
    """Sends until that dump has shown frames with each of these texts."""
    deadline = time.monotonic() + LIMIT
    while any(mark not in dump.output.read_text() for mark in marks):
        assert time.monotonic() < deadline, dump.lines()
        send(lab, WARM_UP, 1)
        time.sleep(0.2)


@pytest.mark.parametrize("target", ["interface", "broadcast"])
@pytest.mark.parametrize("mode", xdp_program.MODES)
def test_redirected_frames_are_shown_where_they_leave(
    make_lab, make_dump, make_top, tmp_path: Path, mode: str, target: str
) -> None:
    lab = make_lab()
    known(lab)
    with device(lab, "one") as (one, first), device(lab, "two") as (two, second):
        if target == "interface":
            program, ends = xdp_program.redirect(one), {"one": first}
        else:
            table = xdp_program.device_map(lab, [one, two])
            program, ends = xdp_program.to_first(table, xdp_program.BPF_F_BROADCAST), {"one": first, "two": second}
        with xdp_program.attached(lab, links.SERVER, program, mode):
            files = {name: tmp_path / f"{name}.pcapng" for name in ends}
            captures = {name: make_dump(lab, "server", "-i", name, "-w", files[name], FILTER) for name in ends}
            words = ["-i", links.SERVER, *(word for name in ends for word in ("-i", name))]
            seen = make_dump(lab, "server", *words, "--json", f"{FILTER} or udp dst port {WARM_UP}")
            top = make_top(lab, "one")
            warm(lab, seen, ['"verdict":"redirect"', '"point":"xdp_transmit"'])
            send(lab, PORT, COUNT)
            frames = {name: taken(end, COUNT) for name, end in ends.items()}
            sent = {"packets": COUNT, "bytes": sum(len(frame) for frame in frames["one"])}

            def counted(document: dict) -> list[dict]:
                return [row["sent"]["xdp"] for row in rows(document, protocol="udp", remote_port=PORT)]

            top.wait_for(lambda document: counted(document) == [sent], f"{sent}")
            for name, dump in captures.items():
                assert dump.end() == COUNT == len(frames[name])
                packets_of = written(files[name])
                assert [data for data, _ in packets_of] == frames[name]
                assert {comment for _, comment in packets_of} == {"xdp transmit"}
            seen.end()
        shown = [document for document in map(json.loads, seen.lines()) if document["destination_port"] == PORT]
        leaving = [document for document in shown if document["point"] == "xdp_transmit"]
        assert [(document["direction"], document["verdict"]) for document in leaving] == [("out", "redirect")] * len(leaving)
        for name in ends:
            assert sum(document["interface"] == name for document in leaving) == COUNT
        # Where they came, with the verdict; nothing else.
        assert sum(document["interface"] == links.SERVER for document in shown) == COUNT == len(shown) - len(leaving)
        text = run([BINARY, "dump", "-r", files["one"]]).splitlines()
        assert len(text) == COUNT and all(" one Out xdp redirect IP " in line for line in text), text[:3]


def test_what_the_device_does_not_take_is_told(make_lab, make_dump, make_top, tmp_path: Path) -> None:
    lab = make_lab()
    known(lab)
    with device(lab, "one") as (one, _), xdp_program.attached(lab, links.SERVER, xdp_program.redirect(one), "native"):
        file = tmp_path / "a.pcapng"
        dump, seen = make_dump(lab, "server", "-i", "one", "-w", file, FILTER), make_dump(lab, "server", "-i", "one", "--json")
        top = make_top(lab, "one")
        warm(lab, seen, ['"point":"xdp_transmit"'])
        # Its other end receives no longer (veth_xdp_xmit in drivers/net/veth.c).
        links.ip(lab, "server", "link set one-end down")
        send(lab, PORT, COUNT)
        found = top.wait_for(lambda document: dropped(document, "xdp", "egress") >= COUNT, "all of them")
        assert not rows(found, protocol="udp", remote_port=PORT), "what was not taken was not sent"
        assert dump.end() == COUNT
        assert {comment for _, comment in written(file)} == {"xdp transmit, dropped: egress"}


def test_live_frames_are_shown_with_the_process_that_sends_them(make_lab, make_dump, make_top, tmp_path: Path) -> None:
    lab = make_lab()
    known(lab)
    file = tmp_path / "a.pcapng"
    dump = make_dump(lab, "client", "-i", links.CLIENT, "-w", file, FILTER)
    other = make_dump(lab, "client", "-i", links.CLIENT, f"udp dst port {WARM_UP}")
    top = make_top(lab, links.CLIENT, role="client")
    size = 300
    words = ("--to", address(lab.server["ipv4"], PORT), "--count", "2000", "--size", str(size), "--rate", "5k", "--io", "live")
    command = lab.inside("client", BINARY, "--log-level", "error", "gen", "udp", *words, "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        report = json.loads(process.communicate(timeout=LIMIT)[0])
    sent = report["sent"]
    assert sent > 0

    def counted(document: dict) -> list[tuple[int, int]]:
        found = rows(document, protocol="udp", remote_port=PORT)
        return [(packets(row["sent"]), octets(row["sent"])) for row in found]

    top.wait_for(lambda document: counted(document) == [(sent, sent * (size + 42))], f"{sent} frames")
    dump.end()
    assert other.end() == 0
    shown = written(file)
    taken_by_it = [data for data, comment in shown if "dropped: egress" not in comment]
    assert len(taken_by_it) == sent
    assert all(f"pid {process.pid} " in comment for _, comment in shown), {comment for _, comment in shown}
    numbers = [struct.unpack_from("!Q", data, 42)[0] for data in taken_by_it]
    assert numbers == sorted(numbers)
