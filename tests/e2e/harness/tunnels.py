"""Ends of a balancer's tunnels on a node: sockets of this process."""

import select
import socket
import struct
import threading
from dataclasses import dataclass

from .balance import Network
from .namespace import run_inside

# IP in IP, by what is within (RFC 2003 and RFC 4213); the same numbers in both families' headers.
INNER_IPV4, INNER_IPV6 = 4, 41
GUE_PORT = 6080


@dataclass(frozen=True)
class Outer:
    """What an outer header said."""

    source: str
    method: str
    inner: int
    # Of GUE.
    port: int = 0


def address_of(network: Network, name: str, family: int) -> str:
    """A node's own address."""
    return network.address(name) if family == 4 else f"fd77::{network.hosts[name]}"


class ProcessEnd:
    """Raw sockets for IP in IP and UDP sockets for GUE. The kernel has checked the outer header and its checksums when they see a
    packet; what is within goes to the node's stack over a link of its own."""

    def __init__(self, network: Network, name: str) -> None:
        self.seen: set[Outer] = set()
        self._count = 0
        network.inside(name, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")
        network.ip(name, "link", "add", "name", "within", "type", "veth", "peer", "name", "inject")
        for device in ("within", "inject"):
            network.ip(name, "link", "set", device, "up")
        to = network.inside(name, "cat", "/sys/class/net/within/address").strip().replace(":", "")
        self._link = bytes.fromhex(to) + b"\x02\0\0\0\0\x01"

        def make() -> tuple[dict[socket.socket, tuple[str, int]], socket.socket]:
            sockets = {}
            for family, outer in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
                local = address_of(network, name, outer)
                for inner in (INNER_IPV4, INNER_IPV6):
                    raw = socket.socket(family, socket.SOCK_RAW, inner)
                    raw.bind((local, 0))
                    sockets[raw] = ("ipip", inner)
                udp = socket.socket(family, socket.SOCK_DGRAM)
                udp.bind((local, GUE_PORT))
                sockets[udp] = ("gue", 0)
            for made in sockets:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            injecting = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            injecting.bind(("inject", 0))
            return sockets, injecting

        self._sockets, self._injecting = run_inside(network.namespace(name), make)
        self._over, self._waking = socket.socketpair()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        watched = [*self._sockets, self._waking]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if self._waking in ready:
                return
            for one in ready:
                self._take(one)

    def _take(self, one: socket.socket) -> None:
        method, inner = self._sockets[one]
        packet, (source, port, *_) = one.recvfrom(65536)
        # IPv4's raw sockets tell the outer header, IPv6's do not.
        if method == "ipip" and one.family == socket.AF_INET:
            packet = packet[(packet[0] & 0xF) * 4 :]
        version = packet[0] >> 4
        inner = inner or (INNER_IPV4 if version == 4 else INNER_IPV6)
        self.seen.add(Outer(source, method, inner, port if method == "gue" else 0))
        self._count += 1
        self._injecting.send(self._link + struct.pack("!H", 0x0800 if version == 4 else 0x86DD) + packet)

    def packets(self) -> int:
        """What came out of tunnels."""
        return self._count

    def close(self) -> None:
        """Ends it."""
        self._over.send(b"x")
        self._thread.join()
        for one in (*self._sockets, self._injecting, self._over, self._waking):
            one.close()


def balancers_address(network: Network, outer: int) -> str:
    """The source of outer headers."""
    return network.address("lb") if outer == 4 else f"fd77::{network.hosts['lb']}"
