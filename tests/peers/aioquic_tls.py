#!/usr/bin/env python3
"""One QUIC handshake by aioquic: which certificate came, and whether a session was resumed.

Prints {"names": [...], "resumed": bool, "status": that of the path} or {"error": CODE}, where CODE is that of the server's CONNECTION_CLOSE.
With -early the request goes out with the first packets if the session allows it, and there is "early", whether the server took it as
such; "cid" is a connection ID that the server issued. With -hold there is a line with "cid" first, the request goes out after a line of
input, and the connection stays until there is another or the end of it.
"""

import argparse
import asyncio
import json
import pickle
import ssl
import sys
from pathlib import Path

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent
from aioquic.quic.logger import QuicFileLogger
from aioquic.tls import SessionTicket
from cryptography import x509

LIMIT = 60


class Client(QuicConnectionProtocol):
    """Remembers by what a connection was ended."""

    code: int | None = None

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.head: dict[bytes, bytes] = {}
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self.code = event.error_code
        for http_event in self.http.handle_event(event):
            if isinstance(http_event, HeadersReceived):
                self.head = dict(http_event.headers)
            if getattr(http_event, "stream_ended", False) and not self.status.done():
                self.status.set_result(int(self.head[b":status"]))

    async def ask(self, authority: str, path: str) -> int:
        """The status of a request, when all of its response has come."""
        fields = {":method": "GET", ":scheme": "https", ":authority": authority, ":path": path}
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        self.http.send_headers(self._quic.get_next_available_stream_id(), headers, end_stream=True)
        self.transmit()
        return await self.status


async def main(arguments: argparse.Namespace) -> dict:
    """Connects, waits for a ticket, and closes."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE)
    configuration.server_name = arguments.name
    if arguments.qlog:
        configuration.quic_logger = QuicFileLogger(arguments.qlog)
    if arguments.certificate:
        configuration.load_cert_chain(arguments.certificate, arguments.key)
    session = Path(arguments.session) if arguments.session else None
    if session and session.exists():
        configuration.session_ticket = pickle.loads(session.read_bytes())  # noqa: S301, written below
    ticket = asyncio.get_running_loop().create_future()

    def keep(new: SessionTicket) -> None:
        if not ticket.done():
            ticket.set_result(new)

    host, port = arguments.connect.rsplit(":", 1)
    made: list[Client] = []

    def protocol(*args, **kwargs) -> Client:
        made.append(Client(*args, **kwargs))
        return made[-1]

    try:
        async with connect(
            host.strip("[]"),
            int(port),
            configuration=configuration,
            create_protocol=protocol,
            session_ticket_handler=keep,
            wait_connected=not arguments.early,
        ) as client:
            asked = asyncio.ensure_future(client.ask(arguments.name, arguments.path)) if arguments.early else None
            # A server that refuses a client's certificate says so after the handshake is done for the client.
            done = asyncio.ensure_future(client.wait_closed())
            await asyncio.wait([done, ticket], return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                return {"error": made[-1].code}
            if session:
                session.write_bytes(pickle.dumps(ticket.result()))
            leaf = client._quic.tls._peer_certificate
            if arguments.hold:
                print(json.dumps({"cid": client._quic._peer_cid.cid.hex()}), flush=True)
                await asyncio.to_thread(sys.stdin.readline)
            status = await (asked or client.ask(arguments.name, arguments.path))
            if arguments.hold:
                await asyncio.to_thread(sys.stdin.readline)
            names: list[str] = []
            if leaf:
                extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
                names = extension.value.get_values_for_type(x509.DNSName)
            found = {"names": names, "resumed": client._quic.tls.session_resumed, "status": status}
            if arguments.early:
                found |= {"early": client._quic.tls.early_data_accepted, "cid": client._quic._peer_cid.cid.hex()}
            return found
    except ConnectionError:
        return {"error": made[-1].code}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-connect", required=True)
    parser.add_argument("-name", required=True)
    parser.add_argument("-session", help="file that a session is resumed from, and kept in")
    parser.add_argument("-certificate")
    parser.add_argument("-path", default="/nothing")
    parser.add_argument("-qlog", help="folder for the client's own qlog")
    parser.add_argument("-hold", action="store_true", help="ask when a line comes on standard input")
    parser.add_argument("-early", action="store_true", help="ask at once, by 0-RTT if the session allows it")
    parser.add_argument("-key")
    print(json.dumps(asyncio.run(asyncio.wait_for(main(parser.parse_args()), LIMIT))))
