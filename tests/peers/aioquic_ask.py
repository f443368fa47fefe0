#!/usr/bin/env python3
"""HTTP/3 by aioquic with all that a request may have: methods, fields, bodies, trailers.

Reads one JSON document: {"connect", "name", "ca", "at_once", "requests": [{"method", "path", "authority", "headers",
"body", "size", "trailers", "count"}]}, and prints a list of {"status", "headers", "body", "bytes", "sha256", "trailers",
"reset"}, the body in Base64 up to 64 KiB. `size` is a body of so many zeros; `count` repeats the request.
"""

import asyncio
import base64
import hashlib
import json
import sys
import time

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection, H3Stream
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StopSendingReceived, StreamReset

KEPT = 64 << 10
LIMIT = 120
# Of an upload, that may wait for the network.
AHEAD = 256 << 10

Fields = list[tuple[bytes, bytes]]


def fields(pairs: list[list[str]]) -> Fields:
    """As aioquic has them."""
    return [(name.encode(), value.encode("latin-1")) for name, value in pairs]


class Response:
    """One response as it comes in."""

    def __init__(self) -> None:
        self.head: Fields = []
        self.trailers: Fields = []
        self.hash = hashlib.sha256()
        self.kept = bytearray()
        self.bytes = 0
        self.reset: int | None = None
        self.stopped = False
        self.done = asyncio.Event()

    def show(self) -> dict:
        """For the report."""
        text = [[name.decode(), value.decode("latin-1")] for name, value in self.head]
        status = next((int(value) for name, value in text if name == ":status"), 0)
        return {
            "status": status,
            "headers": [pair for pair in text if not pair[0].startswith(":")],
            "trailers": [[name.decode(), value.decode("latin-1")] for name, value in self.trailers],
            "body": base64.b64encode(self.kept).decode(),
            "bytes": self.bytes,
            "sha256": self.hash.hexdigest(),
            "reset": self.reset,
        }


class Connection(H3Connection):
    """Does not take a response to HEAD, or a 304, for one whose body is missing."""

    def _check_content_length(self, stream: H3Stream) -> None:
        if stream.content_length:
            super()._check_content_length(stream)


class Client(QuicConnectionProtocol):
    """An HTTP/3 connection."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.http = Connection(self._quic)
        self.responses: dict[int, Response] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            for response in self.responses.values():
                if not response.done.is_set():
                    response.reset = event.error_code
                    response.done.set()
        response = self.responses.get(getattr(event, "stream_id", -1))
        if response and isinstance(event, StreamReset):
            response.reset = event.error_code
            response.done.set()
        if response and isinstance(event, StopSendingReceived):
            response.stopped = True
        for http_event in self.http.handle_event(event):
            response = self.responses.get(getattr(http_event, "stream_id", -1))
            if response is None:
                continue
            if isinstance(http_event, HeadersReceived):
                if response.head:
                    response.trailers = http_event.headers
                else:
                    response.head = http_event.headers
            elif isinstance(http_event, DataReceived):
                response.hash.update(http_event.data)
                response.bytes += len(http_event.data)
                response.kept += http_event.data[: KEPT - len(response.kept)]
            if getattr(http_event, "stream_ended", False):
                response.done.set()

    async def ask(self, authority: str, request: dict) -> dict:
        """Asks, and waits for the end of the response."""
        stream = self._quic.get_next_available_stream_id()
        response = self.responses[stream] = Response()
        head = [
            (b":method", request.get("method", "GET").encode()),
            (b":scheme", b"https"),
            (b":authority", request.get("authority", authority).encode()),
            (b":path", request.get("path", "/").encode()),
            *fields(request.get("headers", [])),
        ]
        body, size, trailers = request.get("body", "").encode(), request.get("size", 0), request.get("trailers")
        has_body = bool(body or size or trailers)
        self.http.send_headers(stream, head, end_stream=not has_body)
        self.transmit()
        if has_body:
            await self.send_body(stream, response, body, size, fields(trailers or []))
        await asyncio.wait_for(response.done.wait(), LIMIT)
        del self.responses[stream]
        return response.show()

    async def send_body(self, stream: int, response: Response, body: bytes, size: int, trailers: Fields) -> None:
        """As fast as the network takes it, and as long as it is wanted."""
        left = size
        while body or left:
            piece, body = (body[:16384], body[16384:]) if body else (bytes(min(left, 16384)), b"")
            if left:
                left -= len(piece)
            is_last = not body and not left and not trailers
            if response.done.is_set() or response.stopped:
                return
            self.http.send_data(stream, piece, end_stream=is_last)
            self.transmit()
            sender = self._quic._streams[stream].sender
            while sender._buffer_stop - sender._buffer_start > AHEAD and not (response.done.is_set() or response.stopped):
                await asyncio.sleep(0.005)
        if trailers:
            self.http.send_headers(stream, trailers, end_stream=True)
            self.transmit()


async def main(job: dict) -> None:
    """Asks for everything on one connection, so many at once."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=H3_ALPN, cafile=job["ca"], server_name=job["name"], idle_timeout=LIMIT
    )
    host, port = job["connect"].rsplit(":", 1)
    async with connect(
        host.strip("[]"), int(port), configuration=configuration, create_protocol=Client
    ) as client:
        assert isinstance(client, Client)
        room = asyncio.Semaphore(job.get("at_once", 1))
        authority = f"{job['name']}:{port}"
        end = time.monotonic() + job.get("seconds", LIMIT)

        async def one(request: dict) -> dict:
            async with room:
                return await client.ask(authority, request)

        answers = []
        while True:
            wanted = [request for request in job["requests"] for _ in range(request.get("count", 1))]
            answers += await asyncio.gather(*(one(request) for request in wanted))
            if "seconds" not in job or time.monotonic() > end:
                break
        print(json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
