"""Lines of a sequenced feed, and its re-request server, written and read by an independent MoldUDP64 codec."""

import socket
import threading
import time
from collections.abc import Iterable

from moldudp.codec.decoder import MoldUDPDecoder
from moldudp.codec.encoder import MoldUDPEncoder
from moldudp.msg.msgpub import MsgPublisher

from .lab import Lab
from .namespace import udp_socket
from .paths import LIMIT

SESSION = b"TUESDAY   "


def message(number: int) -> bytes:
    """Message `number`: of a length and content of its own."""
    return number.to_bytes(8, "big") + bytes((number + at) % 256 for at in range(number * 13 % 200))


class _Collector(MsgPublisher):
    """What the encoder publishes."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []

    def publish(self, buffer: bytearray) -> None:
        """One packet."""
        self.packets.append(bytes(buffer))


def packet(first: int, count: int, session: bytes = SESSION, padded: bool = False) -> bytes:
    """A downstream packet with messages from `first` on. The codec pads it to more than an MTU of 1500 holds."""
    collector = _Collector()
    encoder = MoldUDPEncoder(collector)
    encoder.session(session)
    encoder.seq(first)
    for number in range(first, first + count):
        encoder.add_msg(message(number))
    encoder.process()
    (only,) = collector.packets
    length = 20 + sum(2 + len(message(number)) for number in range(first, first + count))
    assert not any(only[length:])
    return only if padded else only[:length]


def marker(following: int, count: int, session: bytes = SESSION) -> bytes:
    """A heartbeat (count 0) or an end of session (0xffff): by the tables of the specification."""
    return session + following.to_bytes(8, "big") + count.to_bytes(2, "big")


def client_socket(lab: Lab, *bound: str | int, family: int = socket.AF_INET) -> socket.socket:
    """A UDP socket in the client's namespace, which sends to groups by its interface."""
    made = udp_socket(lab.client_namespace, family, "client0")
    if bound:
        made.bind(bound)
    made.settimeout(LIMIT)
    return made


def paced(packets: Iterable[tuple[socket.socket, tuple[str, int], bytes]]) -> None:
    """Sends packets, each by its socket to its address, no faster than a veth's ring empties."""
    for number, (sender, to, data) in enumerate(packets):
        sender.sendto(data, to)
        if number % 32 == 31:
            time.sleep(0.002)


class RerequestServer:
    """Answers requests with as many messages as fit a packet. Loses the first `lose` of them."""

    def __init__(self, lab: Lab, port: int, lose: int = 0) -> None:
        self.socket = client_socket(lab, lab.client["ipv4"], port)
        self.requests: list[tuple[bytes, int, int]] = []
        self.lose = lose
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            data, sender = self.socket.recvfrom(2048)
            if data == b"end":
                return
            assert len(data) == 20
            decoder = MoldUDPDecoder(None)
            decoder.buffer(data)
            self.requests.append((decoder.session(), decoder.seq(), decoder.count()))
            if len(self.requests) > self.lose:
                self.socket.sendto(packet(decoder.seq(), min(decoder.count(), 5)), sender)

    def stop(self) -> None:
        """Ends its thread."""
        self.socket.sendto(b"end", self.socket.getsockname())
        self.thread.join(LIMIT)
        assert not self.thread.is_alive()
