"""A WebSocket subscriber of a fan-out, by hand."""

import json
import ssl

from .fanout import Subscriber
from .lab import Lab
from .paths import HOST


def client_frame(first: int, content: bytes, mask: bytes = b"\1\2\3\4") -> bytes:
    """A client's frame, of fewer than 126 bytes."""
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(content))
    return bytes([first, 0x80 | len(content)]) + mask + masked


class WebSocket(Subscriber):
    """A WebSocket client by hand, that sees every frame as it is on the wire. `early` goes out with its request."""

    def __init__(
        self,
        lab: Lab,
        host: str,
        port: int,
        target: str = "/feed",
        origin: str | None = None,
        tls: ssl.SSLContext | None = None,
        early: bytes = b"",
    ) -> None:
        super().__init__(lab, host, port)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_hostname=HOST)
        more = f"Origin: {origin}\r\n" if origin else ""
        self.socket.sendall(
            f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n".encode() + early
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._exactly(1)
        self.status = int(head.split()[1])
        self.controls: list[tuple[int, bytes]] = []

    def message(self) -> tuple[int, bytes]:
        """Opcode and payload of the next message."""
        first, second = self._exactly(2)
        assert first & 0xF0 == 0x80 and second < 127
        length = second if second < 126 else int.from_bytes(self._exactly(2), "big")
        return first & 0x0F, self._exactly(length)

    def frame(self) -> bytes | int:
        while True:
            opcode, content = self.message()
            if opcode == 2:
                return content
            if opcode == 1:
                return json.loads(content)["gap"]
            self.controls.append((opcode, content))

    def send(self, first: int, content: bytes) -> None:
        """A client's frame, of fewer than 126 bytes."""
        self.socket.sendall(client_frame(first, content))
