#!/usr/bin/env python3
"""HTTP/3 by aioquic: a plain implementation in Python."""

import asyncio
import hashlib

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent
from peer_arguments import Arguments, parse, show


class Response:
    """One response as it comes in."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.hash = hashlib.sha256()
        self.bytes = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Client(QuicConnectionProtocol):
    """An HTTP/3 connection that asks one thing after the other."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.responses: dict[int, Response] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            error = ConnectionError(f"connection ended: {event.error_code:#x} {event.reason_phrase}")
            for response in self.responses.values():
                if not response.done.done():
                    response.done.set_exception(error)
        for http_event in self.http.handle_event(event):
            response = self.responses.get(getattr(http_event, "stream_id", -1))
            if response is None:
                continue
            if isinstance(http_event, HeadersReceived):
                response.headers.update(http_event.headers)
            elif isinstance(http_event, DataReceived):
                response.hash.update(http_event.data)
                response.bytes += len(http_event.data)
            if getattr(http_event, "stream_ended", False):
                response.done.set_result(None)

    async def get(self, authority: str, path: str, span: str) -> dict:
        """Asks, and waits for the end of the response."""
        stream = self._quic.get_next_available_stream_id()
        response = self.responses[stream] = Response()
        headers = [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", authority.encode()),
            (b":path", path.encode()),
        ]
        if span:
            headers.append((b"range", f"bytes={span}".encode()))
        self.http.send_headers(stream, headers, end_stream=True)
        self.transmit()
        await response.done
        return {
            "path": path,
            "range": span,
            "status": int(response.headers[b":status"]),
            "content_range": response.headers.get(b"content-range", b"").decode(),
            "bytes": response.bytes,
            "sha256": response.hash.hexdigest(),
        }


async def main(arguments: Arguments) -> None:
    """Asks for everything on one connection."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=H3_ALPN, cafile=arguments.ca, server_name=arguments.name
    )
    async with connect(
        arguments.host, arguments.port, configuration=configuration, create_protocol=Client
    ) as client:
        assert isinstance(client, Client)
        responses = []
        for path, span in arguments.requests:
            answer = client.get(f"{arguments.name}:{arguments.port}", path, span)
            responses.append(await asyncio.wait_for(answer, arguments.timeout))
    show(responses)


if __name__ == "__main__":
    asyncio.run(main(parse()))
