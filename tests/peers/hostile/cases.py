"""What a client may not send, and what RFC 9114, RFC 9204, RFC 9218 and RFC 9000 say that it gets.

An expectation is how the connection is closed (`application 0x105`, `transport 0xa`), how stream 0 is reset
(`reset 0x10e`), or the status of its response (`status 431`); several where the RFC leaves a choice, as it does
for errors of QUIC that have no code of their own (RFC 9000, section 11). What stands on streams is played by two clients,
what takes frames of its own by aioquic alone.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from aioquic.buffer import encode_uint_var as varint

import http3
from http3 import frame, request, section
from wire import (
    ACK,
    HANDSHAKE_DONE,
    MAX_STREAM_DATA,
    MAX_STREAMS_BIDI,
    NEW_CONNECTION_ID,
    NEW_TOKEN,
    PATH_CHALLENGE,
    PATH_RESPONSE,
    PING,
    RESET_STREAM,
    RETIRE_CONNECTION_ID,
    STOP_SENDING,
    crypto_frame,
    stream_frame,
)
from wire import frame as quic_frame

NO_ERROR, STREAM_CREATION, CLOSED_CRITICAL, UNEXPECTED, FRAME_ERROR = (
    f"application {code:#x}" for code in (0x100, 0x103, 0x104, 0x105, 0x106)
)
EXCESSIVE, ID_ERROR, SETTINGS_ERROR, MISSING_SETTINGS = (f"application {code:#x}" for code in (0x107, 0x108, 0x109, 0x10A))
DECOMPRESSION, ENCODER_STREAM, DECODER_STREAM = (f"application {code:#x}" for code in (0x200, 0x201, 0x202))
MALFORMED, INCOMPLETE = "reset 0x10e", "reset 0x10d"
FLOW, STREAM_LIMIT, STREAM_STATE, FINAL_SIZE, ENCODING, PARAMETER, CID_LIMIT, VIOLATION = (
    f"transport {code:#x}" for code in range(3, 11)
)
CRYPTO_BUFFER, KEY_UPDATE = "transport 0xd", "transport 0xe"


@dataclass
class Case:
    """One thing to do on a new connection, and what comes of it."""

    name: str
    reference: str
    expect: str
    actions: list[dict[str, Any]]
    # What the client says of itself in the handshake, by name.
    handshake: dict[str, Any] = field(default_factory=dict)

    @property
    def is_portable(self) -> bool:
        """Whether streams are all it takes."""
        return not self.handshake and all(action["do"] != "frames" for action in self.actions)

    def document(self) -> dict[str, Any]:
        """For a player, and for whoever compares."""
        return {**asdict(self), "portable": self.is_portable}


def put(stream: int, data: bytes, fin: bool = False) -> dict[str, Any]:
    """Stream data."""
    return {"do": "bytes", "stream": stream, "hex": data.hex(), "fin": fin}


def reset(stream: int, code: int = 0x10C) -> dict[str, Any]:
    """RESET_STREAM."""
    return {"do": "reset", "stream": stream, "code": code}


def by_hand(*frames: bytes) -> dict[str, Any]:
    """Frames of QUIC, each in a packet of its own."""
    return {"do": "frames", "hex": [one.hex() for one in frames]}


def control(rest: bytes = b"", settings: bytes = b"", fin: bool = False) -> dict[str, Any]:
    """Stream 2 as the control stream: SETTINGS and what follows."""
    return put(2, varint(http3.CONTROL) + frame(http3.SETTINGS, settings) + rest, fin)


def typed(stream: int, kind: int, rest: bytes = b"", fin: bool = False) -> dict[str, Any]:
    """A stream of one direction of a type."""
    return put(stream, varint(kind) + rest, fin)


GET = request("/small.txt")
PSEUDO = [(":method", "GET"), (":scheme", "https"), (":authority", "edge.test"), (":path", "/small.txt")]
ANSWERED = put(0, GET, fin=True)


def head(fields: list[tuple[str | bytes, str | bytes]]) -> bytes:
    """HEADERS with exactly these fields."""
    return frame(http3.HEADERS, section(fields))


def without(name: str) -> list[tuple[str, str]]:
    """The usual fields but one."""
    return [pair for pair in PSEUDO if pair[0] != name]


def frames_on_streams() -> list[Case]:
    """RFC 9114, sections 4.1 and 7: which frame may be where."""
    trailers = frame(http3.HEADERS, section([("x-sum", "1")]))
    cases = [
        Case("DATA first", "9114 4.1", UNEXPECTED, [control(), put(0, frame(http3.DATA, b"x"))]),
        Case("empty DATA first", "9114 4.1", UNEXPECTED, [control(), put(0, frame(http3.DATA))]),
        Case("DATA after trailers", "9114 4.1", UNEXPECTED, [control(), put(0, GET + trailers + frame(http3.DATA, b"x"))]),
        Case("HEADERS after trailers", "9114 4.1", UNEXPECTED, [control(), put(0, GET + trailers + trailers)]),
        Case("no request", "9114 4.1.1", INCOMPLETE, [control(), put(0, b"", fin=True)]),
        Case("reserved frames alone", "9114 4.1.1", INCOMPLETE, [control(), put(0, frame(0x21, b"x"), fin=True)]),
        Case("half a frame header", "9114 7.1", FRAME_ERROR, [control(), put(0, b"\x40", fin=True)]),
        Case("half a HEADERS frame", "9114 7.1", FRAME_ERROR, [control(), put(0, GET[:-3], fin=True)]),
        Case("half a DATA frame", "9114 7.1", FRAME_ERROR, [control(), put(0, GET + frame(http3.DATA, b"abc")[:-1], fin=True)]),
        Case("half a reserved frame", "9114 7.1", FRAME_ERROR, [control(), put(0, GET + frame(0x21, b"abc")[:-1], fin=True)]),
        Case("reserved frames around a request", "9114 7.2.8", "status 200",
             [control(frame(0x21, b"x" * 70)), put(0, frame(0x21) + GET + frame(0x40, b"y"), fin=True)]),
    ]
    names = {
        http3.CANCEL_PUSH: ("CANCEL_PUSH", "9114 7.2.3"), http3.SETTINGS: ("SETTINGS", "9114 7.2.4"),
        http3.PUSH_PROMISE: ("PUSH_PROMISE", "9114 7.2.5"), http3.GOAWAY: ("GOAWAY", "9114 7.2.6"),
        http3.MAX_PUSH_ID: ("MAX_PUSH_ID", "9114 7.2.7"), http3.PRIORITY_UPDATE: ("PRIORITY_UPDATE", "9218 7.2"),
        0xF0701: ("PRIORITY_UPDATE of pushes", "9218 7.2"),
    }
    for kind, (name, reference) in names.items():
        cases.append(Case(f"{name} on a request stream", reference, UNEXPECTED, [control(), put(0, GET + frame(kind, b"\0"))]))
        cases.append(Case(f"{name} first on a request stream", reference, UNEXPECTED, [control(), put(0, frame(kind, b"\0"))]))
    for kind in (0x02, 0x06, 0x08, 0x09):
        cases.append(Case(f"HTTP/2 frame {kind:#x} on a request stream", "9114 7.2.8", UNEXPECTED, [control(), put(0, GET + frame(kind, b"\0"))]))
        cases.append(Case(f"HTTP/2 frame {kind:#x} on the control stream", "9114 7.2.8", UNEXPECTED, [control(frame(kind, b"\0"))]))
    for kind, name, reference in (
        (http3.DATA, "DATA", "9114 7.2.1"), (http3.HEADERS, "HEADERS", "9114 7.2.2"), (http3.PUSH_PROMISE, "PUSH_PROMISE", "9114 7.2.5"),
    ):
        cases.append(Case(f"{name} on the control stream", reference, UNEXPECTED, [control(frame(kind, b"\0\0"))]))
    return cases


def critical_streams() -> list[Case]:
    """RFC 9114, section 6.2, and RFC 9204, section 4.2: control and QPACK streams."""
    cases = [
        Case("two control streams", "9114 6.2.1", STREAM_CREATION, [control(), typed(6, http3.CONTROL)]),
        Case("control stream ended", "9114 6.2.1", CLOSED_CRITICAL, [control(fin=True)]),
        Case("control stream ended behind its type", "9114 6.2.1", CLOSED_CRITICAL, [typed(2, http3.CONTROL, fin=True)]),
        Case("control stream reset", "9114 6.2.1", CLOSED_CRITICAL, [control(), ANSWERED, {"do": "answer"}, reset(2)]),
        Case("our control stream stopped", "9114 6.2.1", CLOSED_CRITICAL, [control(), ANSWERED, {"do": "answer"}, by_hand(quic_frame(STOP_SENDING, 3, 0x10C))]),
        Case("a push stream", "9114 6.2.2", STREAM_CREATION, [control(), typed(6, http3.PUSH, b"\0")]),
        Case("a stream that ends before its type", "9114 6.2", "status 200", [control(), put(6, b"", fin=True), put(10, b"\x40", fin=True), ANSWERED]),
        Case("streams of reserved types", "9114 6.2.3", "status 200",
             [control(), typed(6, 0x21, b"x" * 100), typed(10, 0x40, b"", fin=True), typed(14, 0x3FFF_FFFF, b"y"), ANSWERED]),
        Case("no SETTINGS", "9114 6.2.1", MISSING_SETTINGS, [typed(2, http3.CONTROL, frame(http3.GOAWAY, b"\0"))]),
        Case("a reserved frame before SETTINGS", "9114 6.2.1", MISSING_SETTINGS, [typed(2, http3.CONTROL, frame(0x21))]),
        Case("DATA before SETTINGS", "9114 6.2.1", MISSING_SETTINGS, [typed(2, http3.CONTROL, frame(http3.DATA, b"x"))]),
    ]
    for kind, name in ((http3.ENCODER, "encoder"), (http3.DECODER, "decoder")):
        cases += [
            Case(f"two {name} streams", "9204 4.2", STREAM_CREATION, [control(), typed(6, kind), typed(10, kind)]),
            Case(f"{name} stream ended", "9204 4.2", CLOSED_CRITICAL, [control(), typed(6, kind, fin=True)]),
            Case(f"{name} stream reset", "9204 4.2", CLOSED_CRITICAL, [control(), typed(6, kind), ANSWERED, {"do": "answer"}, reset(6)]),
        ]
    return cases


def control_frames() -> list[Case]:
    """RFC 9114, section 7.2: what frames of the control stream carry."""
    setting = lambda *numbers: b"".join(map(varint, numbers))  # noqa: E731
    cases = [
        Case("a second SETTINGS", "9114 7.2.4", UNEXPECTED, [control(frame(http3.SETTINGS))]),
        Case("a setting twice", "9114 7.2.4", SETTINGS_ERROR, [control(settings=setting(6, 100, 6, 100))]),
        Case("a setting without its value", "9114 7.1", FRAME_ERROR, [control(settings=setting(6))]),
        Case("a setting that is cut", "9114 7.1", FRAME_ERROR, [control(settings=b"\x06\x40")]),
        Case("extended CONNECT neither on nor off", "9220 3", SETTINGS_ERROR, [control(settings=setting(8, 2))]),
        Case("datagrams neither on nor off", "9297 2.1.1", SETTINGS_ERROR, [control(settings=setting(0x33, 2))]),
        Case("settings without end", "9114 8.1", EXCESSIVE, [typed(2, http3.CONTROL, varint(http3.SETTINGS) + varint(1 << 30))]),
        Case("settings that mean nothing", "9114 7.2.4.1", "status 200", [control(settings=setting(0x21, 1, 0x40, 2, 1 << 40, 3)), ANSWERED]),
        Case("CANCEL_PUSH of nothing", "9114 7.2.3", ID_ERROR, [control(frame(http3.CANCEL_PUSH, b"\0"))]),
        Case("CANCEL_PUSH after MAX_PUSH_ID", "9114 7.2.3", ID_ERROR, [control(frame(http3.MAX_PUSH_ID, b"\x08") + frame(http3.CANCEL_PUSH, b"\x04"))]),
        Case("MAX_PUSH_ID that goes down", "9114 7.2.7", ID_ERROR, [control(frame(http3.MAX_PUSH_ID, b"\x08") + frame(http3.MAX_PUSH_ID, b"\x07"))]),
        Case("GOAWAY that goes up", "9114 5.2", ID_ERROR, [control(frame(http3.GOAWAY, b"\x04") + frame(http3.GOAWAY, b"\x08"))]),
        Case("GOAWAY and a request", "9114 5.2", "status 200", [control(frame(http3.GOAWAY, b"\0")), ANSWERED]),
        Case("PRIORITY_UPDATE without an ID", "9218 7.2", FRAME_ERROR, [control(frame(http3.PRIORITY_UPDATE))]),
        Case("PRIORITY_UPDATE of no request", "9218 7.2", ID_ERROR, [control(frame(http3.PRIORITY_UPDATE, b"\x03u=1"))]),
        Case("PRIORITY_UPDATE beyond the limit", "9218 7.2", ID_ERROR, [control(frame(http3.PRIORITY_UPDATE, varint(4 << 30) + b"u=1"))]),
        Case("PRIORITY_UPDATE of a push", "9218 7.2", ID_ERROR, [control(frame(0xF0701, b"\0u=1"))]),
        Case("PRIORITY_UPDATE that is no priority", "9218 7.2", "status 200", [control(frame(http3.PRIORITY_UPDATE, b"\0" + b"\xff=;,")), ANSWERED]),
    ]
    for identifier in (0x00, 0x02, 0x03, 0x04, 0x05):
        cases.append(Case(f"setting {identifier} of HTTP/2", "9114 7.2.4.1", SETTINGS_ERROR, [control(settings=setting(identifier, 1))]))
    for kind, name in ((http3.CANCEL_PUSH, "CANCEL_PUSH"), (http3.GOAWAY, "GOAWAY"), (http3.MAX_PUSH_ID, "MAX_PUSH_ID")):
        cases.append(Case(f"{name} without an ID", "9114 7.1", FRAME_ERROR, [control(frame(kind))]))
        cases.append(Case(f"{name} with more than an ID", "9114 7.1", FRAME_ERROR, [control(frame(kind, b"\0\0"))]))
        cases.append(Case(f"{name} with half an ID", "9114 7.1", FRAME_ERROR, [control(frame(kind, b"\x40"))]))
    return cases


def malformed() -> list[Case]:
    """RFC 9114, sections 4.1.2 to 4.4: requests that are none."""
    heads: dict[str, tuple[str, list]] = {
        "no :method": ("4.3.1", without(":method")),
        "no :scheme": ("4.3.1", without(":scheme")),
        "no :path": ("4.3.1", without(":path")),
        "neither :authority nor host": ("4.3.1", without(":authority")),
        "an empty :authority": ("4.3.1", [*without(":authority"), (":authority", "")]),
        ":authority and host that differ": ("4.3.1", [*PSEUDO, ("host", "other.test")]),
        "user information in :authority": ("4.3.1", [*without(":authority"), (":authority", "me@edge.test")]),
        "an empty :path": ("4.3.1", [*without(":path"), (":path", "")]),
        "a :path without a slash": ("4.3.1", [*without(":path"), (":path", "small.txt")]),
        "a :path with a blank": ("4.3.1", [*without(":path"), (":path", "/small.txt HTTP/1.1")]),
        ":path twice": ("4.3.1", [*PSEUDO, (":path", "/")]),
        ":method twice": ("4.3.1", [*PSEUDO, (":method", "GET")]),
        "a :method that is no token": ("4.3.1", [(":method", "G E T"), *PSEUDO[1:]]),
        ":status in a request": ("4.3", [*PSEUDO, (":status", "200")]),
        "an unknown pseudo-header field": ("4.3", [*PSEUDO, (":protocol2", "x")]),
        "a pseudo-header field behind others": ("4.3", [*PSEUDO[:3], ("x-a", "b"), PSEUDO[3]]),
        "an upper-case name": ("4.2", [*PSEUDO, ("X-Upper", "1")]),
        "an empty name": ("4.2", [*PSEUDO, ("", "1")]),
        "a name with a blank": ("4.2", [*PSEUDO, ("x a", "1")]),
        "a line feed in a value": ("4.2", [*PSEUDO, ("x-a", b"b\nc: d")]),
        "a carriage return in a value": ("4.2", [*PSEUDO, ("x-a", b"b\rc")]),
        "a zero byte in a value": ("4.2", [*PSEUDO, ("x-a", b"b\0")]),
        "a blank before a value": ("4.2", [*PSEUDO, ("x-a", " b")]),
        "connection": ("4.2", [*PSEUDO, ("connection", "close")]),
        "keep-alive": ("4.2", [*PSEUDO, ("keep-alive", "5")]),
        "transfer-encoding": ("4.2", [*PSEUDO, ("transfer-encoding", "chunked")]),
        "upgrade": ("4.2", [*PSEUDO, ("upgrade", "h2c")]),
        "te that is not trailers": ("4.2", [*PSEUDO, ("te", "gzip")]),
        "a content-length that is no number": ("4.1.2", [*PSEUDO, ("content-length", "+0")]),
        "two content-lengths that differ": ("4.1.2", [*PSEUDO, ("content-length", "0"), ("content-length", "1")]),
        "a content-length without a body": ("4.1.2", [*PSEUDO, ("content-length", "1")]),
        "CONNECT with a :path": ("4.4", [(":method", "CONNECT"), *PSEUDO[2:]]),
        "CONNECT without :authority": ("4.4", [(":method", "CONNECT")]),
    }
    cases = [
        Case(name, f"9114 {part}", MALFORMED, [control(), put(0, head(fields), fin=True)])
        for name, (part, fields) in heads.items()
    ]
    # The response is longer than this client reads, so that it is still under way.
    long = [*PSEUDO[:3], (":path", "/long.mp4")]
    sized = head([*long, ("content-length", "3")])
    cases += [
        Case("less body than content-length", "9114 4.1.2", MALFORMED, [control(), put(0, sized + frame(http3.DATA, b"ab"), fin=True)]),
        Case("more body than content-length", "9114 4.1.2", MALFORMED, [control(), put(0, sized + frame(http3.DATA, b"abcd"), fin=True)]),
        Case("a pseudo-header field in trailers", "9114 4.3", MALFORMED,
             [control(), put(0, head(long) + frame(http3.DATA, b"ab") + head([(":path", "/")]), fin=True)]),
        Case("CONNECT", "9114 4.4", "status 501", [control(), put(0, head([(":method", "CONNECT"), (":authority", "a.test:1")]), fin=True)]),
        Case("more fields than are read", "9114 4.2.2", "status 431", [control(), put(0, head([*PSEUDO, *[("x-a", "b")] * 400]), fin=True)]),
        Case("fields larger than are read", "9114 4.2.2", "status 431", [control(), put(0, head([*PSEUDO, ("x-a", "b" * 40_000)]), fin=True)]),
        Case("a section larger than is kept", "9114 4.2.2", "reset 0x107",
             [control(), put(0, varint(http3.HEADERS) + varint(1 << 40) + bytes(100))]),
        Case("a scheme that is not served", "9114 4.3.1", "status 400", [control(), put(0, head([PSEUDO[0], (":scheme", "ftp"), *PSEUDO[2:]]), fin=True)]),
    ]
    return cases


def compression() -> list[Case]:
    """RFC 9204: sections that cannot be decoded, and instructions without a table."""
    zero = b"\0\0"
    fields = section(PSEUDO)[2:]
    sections = {
        "no prefix": ("4.5.1", b""),
        "half a prefix": ("4.5.1", b"\0"),
        "a required insert count": ("2.2.1", b"\x02\0" + fields),
        "a negative base": ("4.5.1.2", b"\0\x80" + fields),
        "an entry of the dynamic table": ("4.5.2", zero + b"\x80"),
        "an entry behind the base": ("4.5.3", zero + b"\x10"),
        "a name of the dynamic table": ("4.5.4", zero + b"\x40\x01x"),
        "a name behind the base": ("4.5.5", zero + b"\x00\x01x"),
        "an index beyond the static table": ("3.1", zero + b"\xff\x24"),
        "an index without end": ("4.1.1", zero + b"\xff" + b"\xff" * 11),
        "an index that is cut": ("4.1.1", zero + b"\xff"),
        "a name longer than the section": ("4.5.6", zero + b"\x27\x7fabc"),
        "a value longer than the section": ("4.5.6", zero + b"\x21a\x7f\x10abc"),
        "a code that is padded too long": ("4.1.2", zero + b"\x21a\x82\xff\xff"),
        "a code that is padded by zeros": ("4.1.2", zero + b"\x21a\x81\x00"),
        "a code with its end in it": ("4.1.2", zero + b"\x21a\x84\xff\xff\xff\xfc"),
    }
    cases = [
        Case(f"a section with {name}", f"9204 {part}", DECOMPRESSION, [control(), put(0, frame(http3.HEADERS, payload), fin=True)])
        for name, (part, payload) in sections.items()
    ]
    cases.append(
        Case("trailers that cannot be decoded", "9204 2.2.1", DECOMPRESSION,
             [control(), put(0, request("/long.mp4") + frame(http3.HEADERS, b"\x02\0\x80"), fin=True)])
    )
    encoder = {
        "a capacity": ("3.2.3", b"\x3f\xbd\x01"), "a capacity of one": ("3.2.3", b"\x21"),
        "an insert with a static name": ("4.3.2", b"\xc1\x01x"), "an insert with a dynamic name": ("4.3.2", b"\x80\x01x"),
        "an insert": ("4.3.3", b"\x41a\x01x"), "a duplicate": ("4.3.4", b"\x00"),
    }
    decoder = {
        "an acknowledgment of nothing": ("4.4.1", b"\x80"), "an increment of nothing": ("4.4.3", b"\x00"),
        "an increment beyond the table": ("4.4.3", b"\x01"), "a number without end": ("4.1.1", b"\x7f" + b"\xff" * 11),
    }
    for kind, code, table in ((http3.ENCODER, ENCODER_STREAM, encoder), (http3.DECODER, DECODER_STREAM, decoder)):
        name = "encoder" if kind == http3.ENCODER else "decoder"
        for what, (part, bytes_) in table.items():
            cases.append(Case(f"{what} on the {name} stream", f"9204 {part}", code, [control(), typed(6, kind, bytes_)]))
    cases += [
        Case("a capacity of zero", "9204 3.2.3", "status 200", [control(), typed(6, http3.ENCODER, b"\x20\x20"), ANSWERED]),
        Case("cancelled streams", "9204 4.4.2", "status 200", [control(), typed(6, http3.DECODER, b"\x44\x7f\x21"), ANSWERED]),
    ]
    return cases


# Numbers that aioquic gives none of its own connection IDs.
FIRST_ID = 100


def new_id(number: int, before: int, length: int = 8) -> bytes:
    """NEW_CONNECTION_ID."""
    return quic_frame(NEW_CONNECTION_ID, number, before, tail=bytes([length]) + bytes([number % 251]) * length + bytes(16))


def transport() -> list[Case]:
    """RFC 9000: frames that may not be sent, or not so."""
    hands = {
        "an unknown frame": ("12.4", ENCODING, [quic_frame(0x3E, tail=b"abc")]),
        "a frame that is cut": ("12.4", f"{ENCODING} or {VIOLATION}", [quic_frame(RESET_STREAM, 0)]),
        "a packet without frames": ("12.4", VIOLATION, [b""]),
        "NEW_TOKEN of a client": ("19.7", VIOLATION, [quic_frame(NEW_TOKEN, 1, tail=b"x")]),
        "HANDSHAKE_DONE of a client": ("19.20", VIOLATION, [quic_frame(HANDSHAKE_DONE)]),
        "data on a stream of the server's": ("19.8", STREAM_STATE, [stream_frame(3, b"x")]),
        "data on a stream that only the server may open": ("19.8", STREAM_STATE, [stream_frame(1, b"x")]),
        "RESET_STREAM of a stream of the server's": ("19.4", STREAM_STATE, [quic_frame(RESET_STREAM, 3, 0, 0)]),
        "STOP_SENDING of a stream that only the client sends on": ("19.5", STREAM_STATE, [quic_frame(STOP_SENDING, 2, 0)]),
        "STOP_SENDING of a stream that the server has not opened": ("19.5", STREAM_STATE, [quic_frame(STOP_SENDING, 1, 0)]),
        "MAX_STREAM_DATA of a stream that only the client sends on": ("19.10", STREAM_STATE, [quic_frame(MAX_STREAM_DATA, 2, 100)]),
        "a request beyond the limit": ("4.6", STREAM_LIMIT, [stream_frame(4 * 100_000, b"x")]),
        "a stream of one direction beyond the limit": ("4.6", STREAM_LIMIT, [stream_frame(4 * 100_000 + 2, b"x")]),
        "RESET_STREAM beyond the limit": ("4.6", STREAM_LIMIT, [quic_frame(RESET_STREAM, 400_000, 0, 0)]),
        "data beyond the stream's window": ("4.1", FLOW, [stream_frame(0, b"x", 1 << 40)]),
        "a final size beyond the stream's window": ("4.5", FLOW, [quic_frame(RESET_STREAM, 0, 0, 1 << 40)]),
        "data beyond all that there can be": ("19.8", ENCODING, [stream_frame(0, b"xx", (1 << 62) - 1)]),
        "data behind the end": ("4.5", FINAL_SIZE, [stream_frame(0, b"ab", 10, fin=True), stream_frame(0, b"c", 12)]),
        "two ends": ("4.5", FINAL_SIZE, [stream_frame(0, b"ab", 10, fin=True), stream_frame(0, b"c", 2, fin=True)]),
        "an end before what has come": ("4.5", FINAL_SIZE, [stream_frame(0, b"ab", 10), stream_frame(0, b"", 3, fin=True)]),
        "a reset before what has come": ("4.5", FINAL_SIZE, [stream_frame(0, b"ab", 10), quic_frame(RESET_STREAM, 0, 0, 3)]),
        "MAX_STREAMS beyond all that there can be": ("19.11", ENCODING, [quic_frame(MAX_STREAMS_BIDI, (1 << 60) + 1)]),
        "STREAMS_BLOCKED beyond all that there can be": ("19.14", ENCODING, [quic_frame(0x16, (1 << 60) + 1)]),
        "NEW_CONNECTION_ID without an ID": ("19.15", ENCODING, [quic_frame(NEW_CONNECTION_ID, 1, 0, tail=b"\0" + bytes(16))]),
        "NEW_CONNECTION_ID with a long ID": ("19.15", ENCODING, [new_id(FIRST_ID, 0, 21)]),
        "NEW_CONNECTION_ID that retires itself": ("19.15", ENCODING, [new_id(FIRST_ID, FIRST_ID + 1)]),
        "a number with two connection IDs": ("19.15", f"{VIOLATION} or {ENCODING}", [new_id(1, 0)]),
        "more connection IDs than are kept": ("5.1.1", CID_LIMIT, [b"".join(new_id(number, 0) for number in range(FIRST_ID, FIRST_ID + 20))]),
        "RETIRE_CONNECTION_ID of what was never offered": ("19.16", VIOLATION, [quic_frame(RETIRE_CONNECTION_ID, 1000)]),
        "ACK of what was never sent": ("13.1", VIOLATION, [quic_frame(ACK, 1 << 40, 0, 0, 0)]),
        "ACK of negative numbers": ("19.3.1", ENCODING, [quic_frame(ACK, 2, 0, 0, 5)]),
        "ACK with ranges that go below zero": ("19.3.1", ENCODING, [quic_frame(ACK, 2, 0, 1, 0, 5, 5)]),
        "CRYPTO far behind a gap": ("7.5", CRYPTO_BUFFER, [crypto_frame(b"x", 1 << 30)]),
        "CRYPTO that is no TLS": ("9001 4.1.3", "transport 0x10a", [crypto_frame(b"\x01\0\0\x02ab", 0)]),
        "a key update of TLS": ("9001 6", "transport 0x10a", [crypto_frame(b"\x18\0\0\x01\0", 0)]),
    }
    cases = [
        Case(name, part if " " in part else f"9000 {part}", expect, [control(), by_hand(*frames)])
        for name, (part, expect, frames) in hands.items()
    ]
    harmless = [
        quic_frame(PATH_RESPONSE, tail=bytes(8)), quic_frame(PATH_CHALLENGE, tail=bytes(8)), quic_frame(PING),
        crypto_frame(b"", 0), quic_frame(0x14, 1), quic_frame(0x15, 0, 1), quic_frame(0x16, 1), stream_frame(4),
    ]
    cases.append(Case("frames that ask for nothing", "9000 19", "status 200", [control(), by_hand(*harmless), ANSWERED]))
    return cases


def handshakes() -> list[Case]:
    """RFC 9001, section 8: what a client says of itself."""
    return [
        Case("another protocol", "9001 8.1", "transport 0x178", [], {"alpn": ["h2"]}),
        Case("no protocol", "9001 8.1", "transport 0x178", [], {"alpn": None}),
    ]


def table() -> list[Case]:
    """All of them; names are unique."""
    parts = (frames_on_streams, critical_streams, control_frames, malformed, compression, transport, handshakes)
    cases = [case for part in parts for case in part()]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]
    return cases
