"""Attacks on Media over QUIC, and on WebTransport: streams that begin and do not go on, requests for nothing, sessions that say nothing."""

from collections.abc import Iterator

from aioquic.buffer import encode_uint_var as varint

import http3
from report import Report
from wire import Target, Wire

MOQ = "moq-lite-05"
# Streams that a client opens: requests, and what goes one way.
REQUEST, ONE_WAY = 0, 2
SUBSCRIBE, GROUP = 2, 0
# Octets that a message may have.
LONGEST = 4096
# Connections at once, and streams that each opens in one go.
SESSIONS, BURST = 8, 20


def message(kind: int, body: bytes) -> bytes:
    """The beginning of a stream: its type and a message."""
    return varint(kind) + varint(len(body)) + body


def text(value: str) -> bytes:
    """A path or a name."""
    return varint(len(value)) + value.encode()


def setup(room: str) -> bytes:
    """The stream that says which room is wanted."""
    return message(1, b"\x01\x02" + text(f"/{room}"))


def entered(target: Target) -> Wire:
    """A session in the room that tests have."""
    wire = Wire(target, protocol=MOQ).open()
    if wire.closed is None:
        wire.write(ONE_WAY, setup("studio"), fin=True)
        wire.flush()
    return wire


def limits(wire: Wire) -> tuple[int, int]:
    """The first streams that may not be opened yet, both ways and one."""
    quic = wire.quic
    return 4 * quic._remote_max_streams_bidi, 2 + 4 * quic._remote_max_streams_uni


def moq_plain(target: Target, report: Report) -> Iterator[None]:
    """No attack: asks what a track is like that is not there, one question after the other."""
    wire, stream = entered(target), 0
    try:
        while True:
            if wire.closed is not None:
                report.leave(wire)
                wire, stream = entered(target), 0
            wire.write(stream, message(6, text("none") + text("video")), fin=True)
            wire.flush()
            if wire.until(lambda stream=stream: stream in wire.resets or stream in wire.finished):
                report.add("responses")
            wire.resets.clear()
            stream += 4
            yield
    finally:
        report.leave(wire)


def beginnings(
    target: Target, report: Report, make, parts: tuple[bytes, bytes], first: int, sessions: int = SESSIONS, most: int = 1 << 20
) -> Iterator[None]:
    """Connections with as many streams as they may have, or `most` each way, each with a part of what it begins with; `first` of those one
    way are taken."""
    opened = [make(target) for _ in range(sessions)]
    nexts = [[REQUEST, ONE_WAY + 4 * first] for _ in opened]
    try:
        while True:
            for index, wire in enumerate(opened):
                if wire.closed is not None:
                    report.leave(wire)
                    opened[index], nexts[index] = make(target), [REQUEST, ONE_WAY + 4 * first]
                    continue
                for way, limit in enumerate(min(limit, 4 * most) for limit in limits(wire)):
                    # A few at a time, so that others have their turn.
                    for _ in range(BURST):
                        if nexts[index][way] >= limit:
                            break
                        wire.write(nexts[index][way], parts[way])
                        nexts[index][way] += 4
                        report.add("streams")
                wire.step()
            yield
    finally:
        for wire in opened:
            report.leave(wire)


def part(kind: int, octets: int) -> bytes:
    """A type, the length of a message, and some of it."""
    return varint(kind) + varint(LONGEST) + bytes(octets)


def moq_beginnings(target: Target, report: Report) -> Iterator[None]:
    """Messages that do not end, on as many streams as may be open: no more than a session may keep of them."""
    return beginnings(target, report, entered, (part(SUBSCRIBE, 150), part(GROUP, 150)), 1)


def moq_large_beginnings(target: Target, report: Report) -> Iterator[None]:
    """The same, of which nearly all has come: more than a session may keep."""
    # Few streams, so that their parts come within moments.
    return beginnings(target, report, entered, (part(SUBSCRIBE, 4000), part(GROUP, 4000)), 1, sessions=2, most=16)


def moq_no_setup(target: Target, report: Report) -> Iterator[None]:
    """Requests of sessions that do not say which room they want."""
    parts = (part(SUBSCRIBE, 4000), part(GROUP, 1000))
    return beginnings(target, report, lambda target: Wire(target, protocol=MOQ).open(), parts, 0)


def moq_questions(target: Target, report: Report) -> Iterator[None]:
    """Requests for what is not there, as fast as they are refused."""
    whole = message(SUBSCRIBE, varint(0) + text("none") + text("video") + bytes(5))
    return beginnings(target, report, entered, (whole, message(GROUP, b"\x07\x07")), 1)


def webtransport_beginnings(target: Target, report: Report) -> Iterator[None]:
    """Streams over HTTP/3 that do not say what they are."""

    def make(target: Target) -> Wire:
        wire = Wire(target).open()
        if wire.closed is None:
            http3.open_control(wire)
        return wire

    return beginnings(target, report, make, (b"\xc0", b"\xc0"), 1)


ATTACKS = (moq_plain, moq_beginnings, moq_large_beginnings, moq_no_setup, moq_questions, webtransport_beginnings)
