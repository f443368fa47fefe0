#!/usr/bin/env python3
"""Carries a client's datagrams to one server until that has sent a Retry packet, and to another from then on.

As a network does that gives the client's second packet another way: both servers see the same address of the client. Runs
until it is ended; prints `ready ADDRESS` when it listens, and `retry` when it has turned round.
"""

import argparse
import select
import socket

# Long header, fixed bit, type Retry (RFC 9000, section 17.2.5).
RETRY, KIND = 0xF0, 0xF0
DATAGRAM = 65536


def address(text: str) -> tuple[str, int]:
    """HOST:PORT."""
    host, port = text.rsplit(":", 1)
    return host, int(port)


def main() -> None:
    """Both sockets are bound once: addresses stay as they are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-first", required=True, type=address)
    parser.add_argument("-second", required=True, type=address)
    arguments = parser.parse_args()
    inner = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inner.bind(("127.0.0.1", 0))
    outer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    outer.bind(("0.0.0.0", 0))
    host, port = inner.getsockname()
    print(f"ready {host}:{port}", flush=True)
    server, client = arguments.first, None
    while True:
        readable, _, _ = select.select([inner, outer], [], [])
        if inner in readable:
            datagram, client = inner.recvfrom(DATAGRAM)
            outer.sendto(datagram, server)
        if outer in readable:
            datagram, sender = outer.recvfrom(DATAGRAM)
            if sender != server or client is None:
                continue
            inner.sendto(datagram, client)
            if server == arguments.first and datagram and datagram[0] & KIND == RETRY:
                server = arguments.second
                print("retry", flush=True)


if __name__ == "__main__":
    main()
