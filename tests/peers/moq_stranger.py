#!/usr/bin/env python3
"""Sessions of moq-lite-05 by hand, on aioquic's streams: what no well-behaved peer does. Tells line by line what happens.

* `send HEX…`: a session after another, each of which opens a stream for each HEX (`uni:HEX`, `bidi:HEX`, `fin:HEX`), and tells
  what it was closed with, or what came on its streams.
* `slow BROADCAST`: subscribes to the track `video` and never lets more than 64 KiB come, until a line on standard input.
* `stay WORD`: enters the room and says nothing more; tells what it was told when the relay closes the connection.
* `rude BROADCAST COUNT`: opens so many requests for the track `video` or a group of it, each of which it stops and resets or ends at once, and
  stays until a line on standard input.
* `publish BROADCAST HEX`: announces it and sends HEX as the frames of a group to whoever subscribes, until a line on standard input.
"""

import argparse
import asyncio
import json
import ssl
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived, StreamReset

WINDOW = 64 << 10


def tell(**event) -> None:
    """One line."""
    print(json.dumps(event), flush=True)


def integer(value: int) -> bytes:
    """A variable-length integer."""
    if value < 0x40:
        return bytes([value])
    return (value | 0x4000).to_bytes(2, "big") if value < 0x4000 else (value | 0x80000000).to_bytes(4, "big")


def message(*fields: bytes) -> bytes:
    """A message with its length in front."""
    body = b"".join(fields)
    return integer(len(body)) + body


def text(value: str) -> bytes:
    """A path or a name."""
    return integer(len(value)) + value.encode()


def setup(path: str) -> bytes:
    """The stream that says which room is wanted."""
    return b"\x01" + message(b"\x01\x02", text(path))


class Session(QuicConnectionProtocol):
    """Keeps what has come."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.streams: dict[int, bytes] = {}
        self.resets: dict[int, int] = {}
        self.closed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.came = asyncio.Event()

    def quic_event_received(self, event) -> None:
        """Takes in an event."""
        if isinstance(event, StreamDataReceived):
            self.streams[event.stream_id] = self.streams.get(event.stream_id, b"") + event.data
        elif isinstance(event, StreamReset):
            self.resets[event.stream_id] = event.error_code
        elif isinstance(event, ConnectionTerminated) and not self.closed.done():
            self.closed.set_result(event.error_code)
        self.came.set()

    def write(self, data: bytes, one_way: bool = False, fin: bool = False) -> int:
        """Sends on a new stream."""
        stream = self._quic.get_next_available_stream_id(is_unidirectional=one_way)
        self._quic.send_stream_data(stream, data, fin)
        self.transmit()
        return stream


def session(arguments: argparse.Namespace, window: int | None = None):
    """A connection."""
    options = {"max_data": window, "max_stream_data": window} if window else {}
    configuration = QuicConfiguration(alpn_protocols=["moq-lite-05"], verify_mode=ssl.CERT_NONE, **options)
    return connect(arguments.host, arguments.port, configuration=configuration, create_protocol=Session)


async def line() -> None:
    """Waits for a line on standard input."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def send(arguments: argparse.Namespace) -> None:
    """See the module."""
    for words in arguments.words:
        async with session(arguments) as peer:
            for word in words.split(","):
                kind, octets = word.split(":")
                if kind == "setup":
                    peer.write(setup(octets), one_way=True, fin=True)
                else:
                    peer.write(bytes.fromhex(octets), one_way=kind == "uni", fin=kind == "fin")
            try:
                code = await asyncio.wait_for(asyncio.shield(peer.closed), arguments.wait)
            except TimeoutError:
                code = None
            tell(event="sent", closed=code, resets={str(stream): code for stream, code in peer.resets.items()})


async def slow(arguments: argparse.Namespace) -> None:
    """See the module."""
    async with session(arguments, WINDOW) as peer:
        # What was received gives no room for more.
        peer._quic._write_connection_limits = lambda **_: None
        peer._quic._write_stream_limits = lambda **_: None
        peer.write(setup(arguments.path), one_way=True, fin=True)
        wishes = b"\x00\x00" + integer(100) + b"\x00\x00"
        peer.write(b"\x02" + message(integer(0), text(arguments.words[0]), text("video"), wishes))
        while sum(map(len, peer.streams.values())) < WINDOW // 2:
            peer.came.clear()
            await peer.came.wait()
        tell(event="stuck")
        await line()
        tell(event="seen", octets=sum(map(len, peer.streams.values())), resets=len(peer.resets))


async def stay(arguments: argparse.Namespace) -> None:
    """See the module."""
    async with session(arguments) as peer:
        peer.write(setup(arguments.path), one_way=True, fin=True)
        tell(event="connected")
        code = await peer.closed
        # Streams in both directions that the relay opens; the first asks for broadcasts.
        goaway = [data for stream, data in peer.streams.items() if stream & 3 == 1 and data[:1] == b"\x05"]
        tell(event="closed", code=code, goaway=goaway[0].hex() if goaway else None)


async def rude(arguments: argparse.Namespace) -> None:
    """See the module."""
    broadcast, count = arguments.words[0], int(arguments.words[1])
    async with session(arguments) as peer:
        quic = peer._quic
        peer.write(setup(arguments.path), one_way=True, fin=True)
        for number in range(count):
            # The relay lets it open more once it has done with those before.
            while 4 * quic._remote_max_streams_bidi <= quic.get_next_available_stream_id() and not peer.closed.done():
                peer.transmit()
                await asyncio.sleep(0.002)
            if number % 2:
                asked = b"\x02" + message(integer(number), text(broadcast), text("video"), bytes(5))
            else:
                asked = b"\x03" + message(text(broadcast), text("video"), bytes(2))
            stream = quic.get_next_available_stream_id()
            quic.send_stream_data(stream, asked, number % 3 == 0)
            if number % 3 == 1:
                peer.transmit()
            quic.stop_stream(stream, 1)
            if number % 3:
                quic.reset_stream(stream, 1)
            peer.transmit()
        # All of them come back.
        while quic._remote_max_streams_bidi < count and not peer.closed.done():
            peer.transmit()
            await asyncio.sleep(0.01)
        tell(event="stopped", count=count, closed=peer.closed.result() if peer.closed.done() else None)
        await line()


async def publish(arguments: argparse.Namespace) -> None:
    """See the module."""
    broadcast, frames = arguments.words[0], bytes.fromhex(arguments.words[1])
    async with session(arguments) as peer:
        peer.write(setup(arguments.path), one_way=True, fin=True)
        known: set[int] = set()
        waits = asyncio.ensure_future(line())
        while not waits.done() and not peer.closed.done():
            for stream, data in list(peer.streams.items()):
                # Streams in both directions that the relay opens.
                if stream & 3 != 1 or stream in known:
                    continue
                known.add(stream)
                match data[0]:
                    case 1:
                        answer = message(b"\x07", b"\x01") + message(b"\x01", text(broadcast), b"\x00")
                        peer._quic.send_stream_data(stream, answer)
                        tell(event="announced")
                    case 6:
                        peer._quic.send_stream_data(stream, message(b"\x00\x00", integer(1000), integer(1000)), True)
                    case 2:
                        subscription = data[2:3]
                        peer.write(b"\x00" + message(subscription, b"\x00") + frames, one_way=True, fin=True)
                        tell(event="written")
            peer.transmit()
            peer.came.clear()
            await asyncio.wait([waits, asyncio.ensure_future(peer.came.wait())], return_when=asyncio.FIRST_COMPLETED)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["send", "slow", "stay", "rude", "publish"])
    parser.add_argument("host")
    parser.add_argument("words", nargs="+")
    parser.add_argument("--port", type=int, default=4443)
    parser.add_argument("--path", default="/studio")
    parser.add_argument("--wait", type=float, default=2)
    arguments = parser.parse_args()
    asyncio.run({"send": send, "slow": slow, "stay": stay, "rude": rude, "publish": publish}[arguments.role](arguments))


if __name__ == "__main__":
    main()
