"""Why XDP and the rings of AF_XDP sockets drop packets, made to happen by programs and sockets that are nobody's of ours, and told
by `top` and `dump`."""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import links, xdp_program, xsk
from harness.captures import Dump, dumps
from harness.lab import Lab
from harness.namespace import run_inside, udp_socket
from harness.paths import LIMIT
from harness.top import Top, dropped, tops
from harness.xsk import Xsk

PORT, COUNT = 7000, 25
# Asked for by tests that wait; not counted.
WARM_UP = 7001


@pytest.fixture
def make_top(tmp_path: Path) -> Iterator[Callable[..., Top]]:
    """Starts them on the server's interface."""
    with tops(tmp_path) as start:
        yield lambda lab: start(lab, links.SERVER)


@pytest.fixture
def make_dump(tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures of the server's interface."""
    with dumps(tmp_path) as start:
        yield lambda lab, *words: start(lab, "server", "-i", links.SERVER, *words)


def known(lab: Lab) -> None:
    """The client knows the server, so that what it sends is what a test sends."""
    lab.run("client", "ping", "-c1", lab.server["ipv4"])


def send(lab: Lab, size: int, port: int = PORT, count: int = COUNT) -> None:
    """Datagrams to the server."""
    with udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        for _ in range(count):
            sender.sendto(bytes(size), (lab.server["ipv4"], port))


def other_device(lab: Lab, mtu: int, state: str) -> int:
    """A device of the server to redirect to; its index."""
    links.ip(lab, "server", f"link add other mtu {mtu} type veth peer name end mtu {mtu}")
    for name in ("other", "end"):
        links.ip(lab, "server", f"link set {name} up")
        # Only then does the other end take XDP frames (veth_set_features in drivers/net/veth.c).
        lab.run("server", "ethtool", "-K", name, "gro", "on")
    links.ip(lab, "server", f"link set other {state}")
    return int(lab.run("server", "cat", "/sys/class/net/other/ifindex"))


@pytest.mark.parametrize(("reason", "mode"), [("program", "native"), ("program", "generic"), ("aborted", "native")])
def test_what_a_program_drops_has_its_verdicts_reason(make_lab, make_top, reason: str, mode: str) -> None:
    lab = make_lab()
    known(lab)
    number = {"program": xdp_program.DROP, "aborted": xdp_program.ABORTED}[reason]
    with xdp_program.attached(lab, links.SERVER, xdp_program.verdict(number), mode):
        top = make_top(lab)
        top.needs_tracing()
        send(lab, 100)
        found = top.wait_for(lambda document: dropped(document, "xdp", reason) >= COUNT, reason)
        assert {drop["reason"] for drop in found["drops"] if drop["by"] == "xdp"} == {reason}


# Interface, MTU and state of what is redirected to, and the reason and error (include/uapi/asm-generic/errno.h).
REDIRECTS = {
    "nothing": (None, 1500, "up", "no-target", 22),
    "down": ("other", 1500, "down", "no-target", 100),
    "small": ("other", 500, "up", "too-long", 90),
    # A device that takes no XDP frames: only the native path asks (__xdp_enqueue in kernel/bpf/devmap.c).
    "unable": ("lo", 65536, "up", "redirect-failed", 95),
}


# How an error is told does not depend on which it is, so that generic XDP has to show one.
@pytest.mark.parametrize(("target", "mode"), [*((target, "native") for target in REDIRECTS), ("small", "generic")])
def test_a_redirect_that_fails_has_the_reason_of_its_error(
    make_lab, make_top, make_dump, target: str, mode: str
) -> None:
    name, mtu, state, reason, error = REDIRECTS[target]
    lab = make_lab()
    known(lab)
    to = {None: 99_999, "lo": 1}.get(name) or other_device(lab, mtu, state)
    with xdp_program.attached(lab, links.SERVER, xdp_program.redirect(to), mode):
        top, dump = make_top(lab), make_dump(lab, "--json", f"udp dst port {PORT} or udp dst port {WARM_UP}")
        top.needs_tracing()
        # Until both are known to see what becomes of packets.
        deadline = time.monotonic() + LIMIT
        while '"verdict":' not in dump.output.read_text() or not dropped(top.last(), "xdp", reason):
            assert time.monotonic() < deadline, dump.lines()
            send(lab, 1000, WARM_UP, 1)
            time.sleep(0.2)
        before = dropped(top.last(), "xdp", reason)
        send(lab, 1000)
        top.wait_for(lambda document: dropped(document, "xdp", reason) >= before + COUNT, reason)
        dump.end()
    shown = [one for one in map(json.loads, dump.lines()) if one.get("destination_port") == PORT]
    assert len(shown) == COUNT
    told = {(one["verdict"], one.get("redirect_error"), one.get("dropped")) for one in shown}
    assert told == {("redirect", error, reason)}, told


def test_wrong_descriptors_of_a_process_are_told_by_its_ring(make_lab, make_top) -> None:
    lab = make_lab()
    known(lab)
    made = run_inside(lab.server_namespace, lambda: Xsk(links.SERVER))
    try:
        top = make_top(lab)
        # Beyond the end of the UMEM.
        outside = xsk.ENTRIES * xsk.CHUNK
        for _ in range(3):
            made.rings[xsk.XDP_TX_RING].push(struct.pack("<QII", outside, 100, 0))
        made.kick()
        top.wait_for(lambda document: dropped(document, "xsk", "tx-descriptor, queue 0") == 3, "them")
        # The fill ring is looked at when a packet comes; the good frame behind the wrong ones takes it.
        for address in (outside, outside + xsk.CHUNK, 0):
            made.rings[xsk.XDP_FILL_RING].push(struct.pack("<Q", address))
        table = xdp_program.socket_map(made.socket)
        with xdp_program.attached(lab, links.SERVER, xdp_program.to_first(table), "native"):
            send(lab, 100)
            found = top.wait_for(lambda document: dropped(document, "xsk", "rx-descriptor, queue 0") == 2, "them")
        assert dropped(found, "xsk", "tx-descriptor, queue 0") == 3
        deadline = time.monotonic() + LIMIT
        while not made.rings[xsk.XDP_RX_RING].used():
            assert time.monotonic() < deadline, "the good frame took nothing"
            time.sleep(0.02)
    finally:
        made.close()
