"""HTTP/3 by hand: frames and field sections out of bytes, well formed or not."""

from collections.abc import Sequence

from aioquic.buffer import encode_uint_var

from wire import Wire

DATA, HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID = 0, 1, 3, 4, 5, 7, 0xD
PRIORITY_UPDATE = 0xF0700
# Stream types.
CONTROL, PUSH, ENCODER, DECODER = 0, 1, 2, 3
# A type that means nothing (RFC 9114, sections 6.2.3 and 7.2.8).
RESERVED = 0x21

Fields = Sequence[tuple[str | bytes, str | bytes]]


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return encode_uint_var(kind) + encode_uint_var(len(payload)) + payload


def integer(value: int, bits: int, first: int) -> bytes:
    """An integer with a prefix of so many bits, behind the upper bits `first` (RFC 9204, section 4.1.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytearray([first | most]), value - most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def octets(text: str | bytes) -> bytes:
    """A field's name or value."""
    return text if isinstance(text, bytes) else text.encode()


def section(fields: Fields) -> bytes:
    """A field section of literals (RFC 9204, section 4.5.6)."""
    out = bytearray(b"\0\0")
    for name, value in fields:
        name, value = octets(name), octets(value)
        out += integer(len(name), 3, 0x20) + name + integer(len(value), 7, 0) + value
    return bytes(out)


def request(
    path: str, fields: Fields = (), *, authority: str = "edge.test", method: str = "GET", scheme: str = "https"
) -> bytes:
    """HEADERS of a request."""
    lead = [(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)]
    return frame(HEADERS, section([*lead, *fields]))


def open_control(wire: Wire, settings: bytes = b"") -> None:
    """Opens the control stream, which is stream 2, with SETTINGS."""
    wire.write(2, encode_uint_var(CONTROL) + frame(SETTINGS, settings))
    wire.flush()
