"""The generator on a real driver: what it sends zero-copy and in copy mode arrives whole, in order, once."""

import json
import select
import socket
import struct
import subprocess
import time

import pytest
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT
from harness.server import address

PORT, COUNT, SIZE = 7000, 2000, 200

# linux/socket.h; Python has no name for it.
SO_RCVBUFFORCE = 33


def generator(lab, mode: str, count: int) -> subprocess.Popen[str]:
    """A generator on the server's device, towards the client's."""
    to = address(lab.client["ipv4"], PORT)
    words = ("--rate", "1k", "--count", str(count), "--size", str(SIZE), "--burst", "10", "--io", mode, "--json")
    command = lab.inside("server", BINARY, "--log-level", "error", "gen", "udp", "--to", to, *words)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("mode", ["zerocopy", "copy", "auto"])
def test_what_is_sent_arrives(lab, mode: str) -> None:
    taker = run_inside(lab.client_namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    taker.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
    taker.bind((lab.client["ipv4"], PORT))
    taker.settimeout(LIMIT)
    # Until the link is quite up, what is sent may be lost.
    while not select.select([taker], [], [], 0)[0]:
        generator(lab, "udp", 10).communicate(timeout=LIMIT)
    time.sleep(0.2)
    while select.select([taker], [], [], 0)[0]:
        taker.recv(2048)
    with generator(lab, mode, COUNT) as process:
        payloads = [taker.recv(2048)]
        sockets = lab.zero_copy_sockets()
        report = json.loads(process.communicate(timeout=LIMIT)[0])
    assert sockets == [mode != "copy"] * lab.queues, sockets
    assert report["io"] == {"auto": "zerocopy"}.get(mode, mode)
    assert (report["sent"], report["unsent"], report["refused"]) == (COUNT, 0, 0), report
    while len(payloads) < COUNT:
        payloads.append(taker.recv(2048))
    assert {len(payload) for payload in payloads} == {SIZE}
    # Each once. Not in order: while the kernel does not know whether the neighbour is still there, it sends a burst now and then.
    assert sorted(struct.unpack_from("!Q", payload)[0] for payload in payloads) == list(range(COUNT))
    assert not select.select([taker], [], [], 0.2)[0], "something came twice"
    taker.close()
