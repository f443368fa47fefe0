"""QUIC by hand: aioquic's handshake and packet protection, with frames of any kind in packets of any kind.

What is sent by hand is not retransmitted, not paced and not counted against any window.
"""

import os
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionId
from aioquic.quic.crypto import CryptoPair, apply_key_phase, next_key_phase
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import Epoch

# Frame types of RFC 9000, section 19.
PADDING, PING, ACK, RESET_STREAM, STOP_SENDING, CRYPTO, NEW_TOKEN, STREAM = 0, 1, 2, 4, 5, 6, 7, 8
MAX_DATA, MAX_STREAM_DATA, MAX_STREAMS_BIDI, MAX_STREAMS_UNI = 0x10, 0x11, 0x12, 0x13
NEW_CONNECTION_ID, RETIRE_CONNECTION_ID, PATH_CHALLENGE, PATH_RESPONSE = 0x18, 0x19, 0x1A, 0x1B
CONNECTION_CLOSE, HANDSHAKE_DONE = 0x1C, 0x1E

# The most that a datagram of this side carries.
DATAGRAM = 1200
# Room for frames in a packet with a short header.
ROOM = DATAGRAM - 60
# Long past anything that works.
LIMIT = 20.0


@dataclass(frozen=True)
class Target:
    """Whom to attack, and under which name."""

    host: str
    port: int
    name: str


def frame(kind: int, *numbers: int, tail: bytes = b"") -> bytes:
    """A frame of a type, variable-length integers, and whatever follows them."""
    return b"".join(encode_uint_var(number) for number in (kind, *numbers)) + tail


def stream_frame(stream: int, data: bytes = b"", offset: int = 0, fin: bool = False) -> bytes:
    """STREAM with an explicit offset and length."""
    return frame(STREAM | 0x06 | int(fin), stream, offset, len(data), tail=data)


def crypto_frame(data: bytes, offset: int) -> bytes:
    """CRYPTO."""
    return frame(CRYPTO, offset, len(data), tail=data)


def packed(frames: list[bytes], room: int = ROOM) -> list[bytes]:
    """Frames put together to payloads that fit into packets."""
    payloads, payload = [], b""
    for one in frames:
        if payload and len(payload) + len(one) > room:
            payloads.append(payload)
            payload = b""
        payload += one
    return [*payloads, payload] if payload else payloads


class Keys(CryptoPair):
    """Keys for each way that are updated one by one: how far this side goes is not bound to what it gets."""

    @property
    def key_phase(self) -> int:
        return self.send.key_phase

    def _update_key(self, trigger: str) -> None:
        # What comes is under the next keys.
        apply_key_phase(self.recv, next_key_phase(self.recv), trigger)

    def go_on(self) -> None:
        """Begins to send with the next keys."""
        apply_key_phase(self.send, next_key_phase(self.send), "local_update")


class Connection(QuicConnection):
    """A connection that can be told not to read and not to acknowledge, and counts some of what it gets."""

    reads = True
    acknowledges = True
    # Whether the other side has said that it closes.
    told = False

    def __init__(self, **options) -> None:
        # aioquic takes its handlers from the instance when it is made.
        self.seen: Counter[str] = Counter()
        super().__init__(**options)

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self._cryptos[Epoch.ONE_RTT] = Keys()

    def _write_connection_limits(self, *arguments, **options) -> None:
        if self.reads:
            super()._write_connection_limits(*arguments, **options)

    def _write_stream_limits(self, *arguments, **options) -> None:
        if self.reads:
            super()._write_stream_limits(*arguments, **options)

    def _write_ack_frame(self, *arguments, **options) -> None:
        if self.acknowledges:
            super()._write_ack_frame(*arguments, **options)
        else:
            options["space"].ack_at = None

    def _handle_path_response_frame(self, context, frame_type: int, buf: Buffer) -> None:
        # To a challenge made by hand.
        buf.pull_bytes(8)
        self.seen["path_response"] += 1

    def _handle_retire_connection_id_frame(self, context, frame_type: int, buf: Buffer) -> None:
        # Of an ID that was offered by hand.
        buf.pull_uint_var()
        self.seen["retire_connection_id"] += 1

    def open_windows(self) -> None:
        """Takes whatever comes, for windows that are opened by hand."""
        self.reads = False
        self._local_max_data.value = self._local_max_stream_data_bidi_local = 1 << 60
        for stream in self._streams.values():
            stream.max_stream_data_local = 1 << 60

    def offer(self, number: int) -> bytes:
        """A new connection ID of this side's, which is known when packets come to it."""
        made = QuicConnectionId(os.urandom(8), number, None, True)
        self._host_cids[8:] = [*self._host_cids[-100:], made]
        return made.cid

    def _is_by_hand(self, buf: Buffer) -> bool:
        """Whether the frame that begins here is about a stream that only this side knows of, by hand."""
        start = buf.tell()
        stream = buf.pull_uint_var()
        buf.seek(start)
        return stream & 1 == 0 and stream not in self._streams and not self._stream_is_discarded(stream)

    def _handle_reset_stream_frame(self, context, frame_type: int, buf: Buffer) -> None:
        if not self._is_by_hand(buf):
            return super()._handle_reset_stream_frame(context, frame_type, buf)
        _, code, _ = (buf.pull_uint_var() for _ in range(3))
        self.seen[f"reset {code:#x}"] += 1

    def _handle_stop_sending_frame(self, context, frame_type: int, buf: Buffer) -> None:
        if not self._is_by_hand(buf):
            return super()._handle_stop_sending_frame(context, frame_type, buf)
        _, code = (buf.pull_uint_var() for _ in range(2))
        self.seen[f"stopped {code:#x}"] += 1

    def _handle_max_stream_data_frame(self, context, frame_type: int, buf: Buffer) -> None:
        if not self._is_by_hand(buf):
            return super()._handle_max_stream_data_frame(context, frame_type, buf)
        buf.pull_uint_var()
        buf.pull_uint_var()

    def _handle_stream_frame(self, context, frame_type: int, buf: Buffer) -> None:
        if not self._is_by_hand(buf):
            return super()._handle_stream_frame(context, frame_type, buf)
        buf.pull_uint_var()
        if frame_type & 4:
            buf.pull_uint_var()
        buf.pull_bytes(buf.pull_uint_var() if frame_type & 2 else buf.capacity - buf.tell())
        self.seen["data"] += 1

    def _handle_connection_close_frame(self, context, frame_type: int, buf: Buffer) -> None:
        self.told = True
        super()._handle_connection_close_frame(context, frame_type, buf)

    def _handle_max_streams_bidi_frame(self, *arguments) -> None:
        self.seen["max_streams_bidi"] += 1
        super()._handle_max_streams_bidi_frame(*arguments)

    def _handle_max_streams_uni_frame(self, *arguments) -> None:
        self.seen["max_streams_uni"] += 1
        super()._handle_max_streams_uni_frame(*arguments)


@dataclass
class Closed:
    """How a connection ended: whose code space, the code, and whether it was the other side that said so."""

    application: bool
    code: int
    reason: str
    told: bool
    is_reset: bool = False

    def __str__(self) -> str:
        if self.is_reset:
            return "by a stateless reset"
        if not self.told:
            return f"by the client: {self.code:#x} {self.reason}"
        return f"{'application' if self.application else 'transport'} {self.code:#x}"


class Wire:
    """One connection on a socket of its own, driven by hand."""

    def __init__(
        self, target: Target, *, source: tuple[str, int] = ("", 0), token: bytes = b"", protocol: str = "h3", **limits
    ) -> None:
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=[protocol],
            server_name=target.name,
            verify_mode=ssl.CERT_NONE,
            supported_versions=[QuicProtocolVersion.VERSION_1],
            token=token,
            **limits,
        )
        self.quic = Connection(configuration=configuration)
        family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
        self.address = (target.host, target.port)
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.bind(source if family == socket.AF_INET else ("", 0))
        self.socket.setblocking(False)
        self.closed: Closed | None = None
        self.established = False
        self.sent = 0
        self.received = 0
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.data: dict[int, bytearray] = {}
        self.finished: set[int] = set()
        # Whether bytes of streams are kept.
        self.keeps = False

    def close(self) -> None:
        """Gives the socket back, and tells nobody."""
        self.socket.close()

    # What aioquic does by itself.

    def connect(self) -> None:
        """Makes the first flight, which `flush` sends."""
        self.quic.connect(self.address, now=time.monotonic())

    def open(self, limit: float = LIMIT) -> "Wire":
        """Connects, and waits until the server has said that the handshake is done, or for the connection's end."""
        self.connect()
        self.flush()
        self.until(lambda: self.quic._handshake_confirmed, limit)
        return self

    def flush(self) -> None:
        """Sends what aioquic has."""
        for data, _ in self.quic.datagrams_to_send(now=time.monotonic()):
            self.put(data)

    def put(self, datagram: bytes) -> None:
        """Sends a datagram as it is; one that the socket does not take is lost."""
        try:
            self.socket.sendto(datagram, self.address)
            self.sent += 1
        except (BlockingIOError, ConnectionRefusedError):
            pass

    def take(self) -> None:
        """Takes what the socket has."""
        for _ in range(256):
            try:
                data = self.socket.recv(65536)
            except (BlockingIOError, ConnectionRefusedError):
                break
            self.received += 1
            if data[-16:] in self.tokens():
                self.closed = Closed(False, 0, "", True, is_reset=True)
            self.quic.receive_datagram(data, self.address, now=time.monotonic())
        while (event := self.quic.next_event()) is not None:
            self._handle(event)

    def tokens(self) -> set[bytes]:
        """What datagrams end with that reset this connection."""
        known = [self.quic._peer_cid, *self.quic._peer_cid_available]
        return {one.stateless_reset_token for one in known if one.stateless_reset_token}

    def _handle(self, event) -> None:
        if isinstance(event, HandshakeCompleted):
            self.established = True
        elif isinstance(event, ConnectionTerminated):
            self._end(event)
        elif isinstance(event, StreamReset):
            self.resets[event.stream_id] = event.error_code
        elif isinstance(event, StopSendingReceived):
            self.stops[event.stream_id] = event.error_code
        elif isinstance(event, StreamDataReceived):
            if self.keeps:
                self.data.setdefault(event.stream_id, bytearray()).extend(event.data)
            if event.end_stream:
                self.finished.add(event.stream_id)

    def _end(self, event: ConnectionTerminated) -> None:
        self.closed = Closed(event.frame_type is None, event.error_code, event.reason_phrase, self.quic.told)

    def step(self, wait: float = 0.0) -> None:
        """One turn: takes what comes within `wait`, fires timers, sends."""
        timer = self.quic.get_timer()
        if timer is not None:
            wait = max(0.0, min(wait, timer - time.monotonic()))
        select.select([self.socket], [], [], wait)
        self.take()
        now = time.monotonic()
        if self.closed is None and timer is not None and now >= timer:
            self.quic.handle_timer(now=now)
        # Of a connection that the other side has closed nothing more comes.
        if (event := self.quic._close_event) is not None and self.closed is None:
            self._end(event)
        if self.closed is None:
            self.flush()

    def until(self, true: Callable[[], bool], limit: float = LIMIT) -> bool:
        """Turns until something is so, the connection has ended, or time is up."""
        deadline = time.monotonic() + limit
        while not true() and self.closed is None and (left := deadline - time.monotonic()) > 0:
            self.step(min(left, 0.05))
        return true()

    def run(self, seconds: float) -> None:
        """Turns for so long."""
        self.until(lambda: False, seconds)

    def write(self, stream: int, data: bytes, fin: bool = False) -> None:
        """Stream data by aioquic: in order, within the windows, sent again when lost."""
        self.quic.send_stream_data(stream, data, fin)

    # By hand.

    def payload(self, payload: bytes) -> None:
        """Sends a packet with a short header that carries these frames."""
        quic = self.quic
        number = quic._packet_number
        quic._packet_number += 1
        crypto = quic._cryptos[Epoch.ONE_RTT]
        first = 0x40 | (crypto.key_phase << 2) | 0x03
        header = bytes([first]) + quic._peer_cid.cid + number.to_bytes(4, "big")
        self.put(crypto.encrypt_packet(header, payload, number))

    def frames(self, *frames: bytes) -> None:
        """Sends frames in as few packets as they take."""
        for payload in packed(list(frames)):
            self.payload(payload)

    def update_keys(self) -> None:
        """Begins to send with the next keys, whatever the other side makes of the last."""
        self.quic._cryptos[Epoch.ONE_RTT].go_on()


def client_hello(target: Target, source_id: bytes) -> bytes:
    """The first CRYPTO bytes of a client with that connection ID."""
    wire = Wire(target)
    try:
        quic = wire.quic
        quic._local_initial_source_connection_id = quic.host_cid = source_id
        wire.connect()
        return bytes(quic._crypto_streams[Epoch.INITIAL].sender._buffer)
    finally:
        wire.close()


def initial(
    payload: bytes,
    destination: bytes,
    source: bytes,
    *,
    number: int = 0,
    token: bytes = b"",
    size: int = DATAGRAM,
    keys: bytes | None = None,
) -> bytes:
    """A datagram with one Initial packet, padded to `size`, under the keys of `keys` or the destination's."""
    pair = CryptoPair()
    version = QuicProtocolVersion.VERSION_1
    pair.setup_initial(cid=destination if keys is None else keys, is_client=True, version=version)
    lead = b"\xc3" + int(version).to_bytes(4, "big")
    lead += bytes([len(destination)]) + destination + bytes([len(source)]) + source
    lead += encode_uint_var(len(token)) + token
    payload = payload.ljust(size - len(lead) - 2 - 4 - 16, b"\0")
    length = len(payload) + 4 + 16
    header = lead + (length | 0x4000).to_bytes(2, "big") + number.to_bytes(4, "big")
    return pair.encrypt_packet(header, payload, number)
