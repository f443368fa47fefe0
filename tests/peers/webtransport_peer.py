#!/usr/bin/env python3
"""A client of WebTransport on aioquic's HTTP/3 (draft 2), well behaved or not: does what its words say, one after another, and tells
line by line what has come of it.

* `connect PATH [NAME=VALUE…]`: asks for a session, with more header fields; tells status and fields.
* `get PATH`: a request that is for no session; tells the status.
* `settings`: tells what the server says of itself.
* `uni HEX`, `bidi HEX`: opens a stream of the session and sends this; `fin`-ending words end it: `uni-fin`, `bidi-fin`.
* `uni-of ID HEX`, `bidi-of ID HEX`: the same, of any session.
* `stream KIND HEX`: a stream without a head, KIND `uni` or `bidi`.
* `capsule HEX`: on the stream of the session; `end`: ends that stream, `reset`: resets it.
* `datagram COUNT`: so many.
* `early COUNT`: so many streams of a session that is asked for by the next `connect`.
* `read`: tells what has come on streams since, once something has, or it was closed.
* `closed`: waits until the connection is closed, and tells how. `streams COUNT`: waits until so many of the streams that it has opened
  were reset or stopped. `pause`: waits for a line on standard input.
"""

import argparse
import asyncio
import json
import ssl
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import FrameType, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived, WebTransportStreamDataReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StopSendingReceived, StreamReset


def tell(**event) -> None:
    """One line."""
    print(json.dumps(event), flush=True)


class Client(QuicConnectionProtocol):
    """Keeps what has come."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.http = H3Connection(self._quic, enable_webtransport=True)
        self.answers: dict[int, dict[str, str]] = {}
        self.streams: dict[int, str] = {}
        self.capsules = b""
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.session: int | None = None
        self.opened: list[int] = []
        self.closed: int | None = None
        self.why = ""
        self.came = asyncio.Event()

    def quic_event_received(self, event) -> None:
        """Takes in an event."""
        match event:
            case StreamReset():
                self.resets[event.stream_id] = event.error_code
            case StopSendingReceived():
                self.stops[event.stream_id] = event.error_code
            case ConnectionTerminated():
                self.closed, self.why = event.error_code, event.reason_phrase
        for came in self.http.handle_event(event):
            match came:
                case HeadersReceived():
                    self.answers[came.stream_id] = {name.decode(): value.decode() for name, value in came.headers}
                case DataReceived():
                    self.capsules += came.data
                case WebTransportStreamDataReceived():
                    self.streams[came.stream_id] = self.streams.get(came.stream_id, "") + came.data.hex()
        self.came.set()

    async def until(self, is_it) -> None:
        """Waits until something is true, or the connection is closed."""
        while not is_it() and self.closed is None:
            self.came.clear()
            await self.came.wait()

    def request(self, method: str, path: str, *more: str) -> int:
        """Sends the head of a request; its stream."""
        stream = self._quic.get_next_available_stream_id()
        fields = {":method": method, ":scheme": "https", ":authority": "relay.test", ":path": path}
        fields |= dict(field.split("=", 1) for field in more)
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        self.http.send_headers(stream, headers, end_stream=method != "CONNECT")
        self.transmit()
        return stream

    def open(self, session: int, data: bytes, is_unidirectional: bool, is_last: bool) -> None:
        """Opens a stream of a session."""
        stream = self.http.create_webtransport_stream(session, is_unidirectional)
        if not is_unidirectional:
            # Else aioquic takes what comes back for frames of HTTP/3.
            with self.http._get_or_create_stream(stream) as known:
                known.frame_type, known.session_id = FrameType.WEBTRANSPORT_STREAM, session
        self._quic.send_stream_data(stream, data, is_last)
        self.opened.append(stream)
        self.transmit()

    def is_over(self, stream: int) -> bool:
        """It was reset or stopped."""
        return stream in self.resets or stream in self.stops


async def act(client: Client, word: str, *rest: str) -> None:
    """What a word says."""
    quic, session = client._quic, client.session
    match word:
        case "connect":
            kind = {":protocol": "webtransport"} | dict(field.split("=", 1) for field in rest[1:])
            stream = client.request("CONNECT", rest[0], *(f"{name}={value}" for name, value in kind.items()))
            await client.until(lambda: stream in client.answers or client.is_over(stream))
            answer = client.answers.get(stream, {})
            if answer.get(":status") == "200":
                client.session = stream
            tell(event="connect", status=answer.get(":status"), fields=answer, reset=client.resets.get(stream), closed=client.closed)
        case "get":
            stream = client.request("GET", rest[0])
            await client.until(lambda: stream in client.answers or client.is_over(stream))
            tell(event="get", status=client.answers.get(stream, {}).get(":status"), reset=client.resets.get(stream))
        case "settings":
            await client.until(lambda: client.http.received_settings is not None)
            tell(event="settings", settings={f"{name:#x}": value for name, value in client.http.received_settings.items()})
        case "uni" | "bidi" | "uni-fin" | "bidi-fin":
            client.open(session, bytes.fromhex(rest[0]), word.startswith("uni"), word.endswith("fin"))
        case "uni-of" | "bidi-of":
            client.open(int(rest[0]), bytes.fromhex(rest[1]), word.startswith("uni"), False)
        case "stream":
            stream = quic.get_next_available_stream_id(is_unidirectional=rest[0] == "uni")
            quic.send_stream_data(stream, bytes.fromhex(rest[1]), True)
            client.opened.append(stream)
            client.transmit()
        case "early":
            coming = quic.get_next_available_stream_id()
            for _ in range(int(rest[0])):
                client.open(coming, b"\x3f", True, False)
            # They are there first.
            await asyncio.sleep(0.3)
        case "capsule":
            client.http.send_data(session, bytes.fromhex(rest[0]), False)
            client.transmit()
        case "end":
            client.http.send_data(session, b"", True)
            client.transmit()
        case "reset":
            quic.reset_stream(session, 0x10c)
            client.transmit()
        case "datagram":
            for number in range(int(rest[0])):
                client.http.send_datagram(session, number.to_bytes(2, "big"))
            client.transmit()
        case "read":
            await client.until(lambda: client.streams or client.capsules)
            tell(event="read", streams=client.streams, capsules=client.capsules.hex(), resets=client.resets, stops=client.stops)
            client.streams, client.capsules = {}, b""
        case "streams":
            await client.until(lambda: sum(map(client.is_over, client.opened)) >= int(rest[0]))
            tell(event="streams", resets=sorted(client.resets.items()), stops=sorted(client.stops.items()), closed=client.closed)
        case "closed":
            await client.until(lambda: False)
            tell(event="closed", code=client.closed, why=client.why, capsules=client.capsules.hex(), resets=client.resets)
        case "pause":
            tell(event="paused")
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def play(arguments: argparse.Namespace) -> None:
    """All of them."""
    configuration = QuicConfiguration(alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE, max_datagram_frame_size=65536)
    async with connect(arguments.host, arguments.port, configuration=configuration, create_protocol=Client) as client:
        for words in arguments.words:
            await act(client, *words.split())
        tell(event="done", closed=client.closed)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["play"])
    parser.add_argument("host")
    parser.add_argument("words", nargs="+")
    parser.add_argument("--port", type=int, default=4443)
    asyncio.run(play(parser.parse_args()))


if __name__ == "__main__":
    main()
