"""What comes out of the client's device: whole frames, by a packet socket."""

import json
import select
import socket
import struct
import subprocess
import time

from device_lab import DeviceLab
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT
from harness.server import address

# linux/socket.h and linux/if_ether.h; Python has no names for them.
SO_RCVBUFFORCE = 33
ETH_P_IP = 0x0800
# Ethernet, and IPv4 without options.
UDP = 14 + 20


class Taker:
    """Takes frames with UDP datagrams over IPv4 to a port, and none that the client itself sends."""

    def __init__(self, lab: DeviceLab, port: int) -> None:
        self._port = port

        def make() -> socket.socket:
            made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
            made.bind(("client0", ETH_P_IP))
            return made

        self._socket = run_inside(lab.client_namespace, make)

    def take(self, count: int, limit: float = LIMIT) -> list[bytes]:
        """So many frames, or fewer if they do not come."""
        found: list[bytes] = []
        deadline = time.monotonic() + limit
        while len(found) < count and (left := deadline - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                frame = self._socket.recv(65536)
                if len(frame) >= UDP + 8 and frame[23] == 17 and struct.unpack_from("!H", frame, UDP + 2)[0] == self._port:
                    found.append(frame)
        return found

    def close(self) -> None:
        """No more."""
        self._socket.close()


def generate(lab: DeviceLab, port: int, mode: str, count: int, size: int) -> subprocess.Popen[str]:
    """A generator on the server's device, towards the client's."""
    to = address(lab.client["ipv4"], port)
    words = ("--rate", "300", "--count", str(count), "--size", str(size), "--burst", "10", "--io", mode, "--json")
    command = lab.inside("server", BINARY, "--log-level", "error", "gen", "udp", "--to", to, *words)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def connected(lab: DeviceLab, port: int) -> None:
    """Waits until frames pass, as what is sent before the link is quite up may be lost, and has both sides know their
    neighbour for good: a burst to one that is stale goes through the kernel."""
    taker = Taker(lab, port)
    while not taker.take(1, 0.1):
        generate(lab, port, "udp", 10, 64).communicate(timeout=LIMIT)
    taker.close()
    for role, other, addresses in (("server", "client", lab.client), ("client", "server", lab.server)):
        (link,) = json.loads(lab.run(other, "ip", "-json", "link", "show", f"{other}0"))
        lab.run(role, "ip", "neigh", "replace", addresses["ipv4"], "lladdr", link["address"], "dev", f"{role}0")
