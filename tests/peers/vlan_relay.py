#!/usr/bin/env python3
"""Joins a tap interface and an Ethernet interface, with VLAN tags on the Ethernet side.

For kernels without VLAN interfaces: what a client sends by the tap leaves by the interface with the tags;
what comes in by the interface reaches the tap, with its tags taken off. Runs inside a namespace until it is
ended; prints `ready` once both are open.
"""

import argparse
import errno
import fcntl
import os
import select
import socket
import struct
from typing import NoReturn

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
ETH_P_ALL, ETH_P_8021Q, ETH_P_8021AD = 0x0003, 0x8100, 0x88A8
FRAME = 65536


def tags(ids: list[int]) -> bytes:
    """The tags in the order on the wire: the outer of two is a service tag (IEEE 802.1ad)."""
    kinds = [ETH_P_8021AD] * (len(ids) - 1) + [ETH_P_8021Q]
    return b"".join(struct.pack("!HH", kind, tag) for kind, tag in zip(kinds, ids, strict=True))


def untag(frame: bytes) -> bytes:
    """The frame without its tags."""
    while struct.unpack_from("!H", frame, 12)[0] in (ETH_P_8021Q, ETH_P_8021AD):
        frame = frame[:12] + frame[16:]
    return frame


def deliver(tap: int, frame: bytes) -> None:
    """Gives the frame to the tap; one that is not up yet loses it, as a cable without a far end does."""
    try:
        os.write(tap, frame)
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def relay(tap: int, wire: socket.socket, header: bytes) -> NoReturn:
    """Carries frames both ways."""
    while True:
        readable, _, _ = select.select([tap, wire], [], [])
        if tap in readable:
            frame = os.read(tap, FRAME)
            wire.send(frame[:12] + header + frame[12:])
        if wire in readable:
            frame, address = wire.recvfrom(FRAME)
            if address[2] != socket.PACKET_OUTGOING:
                deliver(tap, untag(frame))


def main() -> NoReturn:
    """Opens both ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tap", required=True, help="name of the tap, which is made")
    parser.add_argument("--interface", required=True)
    parser.add_argument("--tag", required=True, type=int, action="append", help="VLAN ID; outer first")
    arguments = parser.parse_args()
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", arguments.tap.encode(), IFF_TAP | IFF_NO_PI))
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.bind((arguments.interface, ETH_P_ALL))
    print("ready", flush=True)
    relay(tap, wire, tags(arguments.tag))


if __name__ == "__main__":
    main()
