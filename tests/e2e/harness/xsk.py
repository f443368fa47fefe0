"""An AF_XDP socket by bare system calls, as a program has it that is nobody's of ours: rings, UMEM, TX metadata."""

import contextlib
import ctypes
import errno
import mmap
import os
import socket
import struct
import time
from collections.abc import Sequence

from .paths import LIMIT

# linux/if_xdp.h
AF_XDP, SOL_XDP = 44, 283
XDP_MMAP_OFFSETS, XDP_RX_RING, XDP_TX_RING, XDP_UMEM_REG, XDP_FILL_RING, XDP_COMPLETION_RING = range(1, 7)
XDP_COPY, XDP_ZEROCOPY, XDP_USE_SG = 2, 4, 16
XDP_UMEM_TX_SW_CSUM, XDP_UMEM_TX_METADATA_LEN = 2, 4
XDP_PKT_CONTD, XDP_TX_METADATA = 1, 2
PAGES = {XDP_RX_RING: 0, XDP_TX_RING: 0x80000000, XDP_FILL_RING: 0x100000000, XDP_COMPLETION_RING: 0x180000000}
TIMESTAMP, CHECKSUM, LAUNCH_TIME = 1, 2, 4
# struct xsk_tx_metadata: flags, csum_start, csum_offset, launch_time.
METADATA = struct.Struct("<QHH4xQ")

ENTRIES, CHUNK = 64, 4096
_LIBC = ctypes.CDLL(None, use_errno=True)


class Ring:
    """One of the four."""

    def __init__(self, file: int, option: int, offsets: bytes, element: int) -> None:
        # struct xdp_mmap_offsets: of RX, TX, fill and completion where producer, consumer, elements and flags are.
        at = {XDP_RX_RING: 0, XDP_TX_RING: 32, XDP_FILL_RING: 64, XDP_COMPLETION_RING: 96}[option]
        self._producer, self._consumer, self._elements, _ = struct.unpack_from("<4Q", offsets, at)
        self._element = element
        self._memory = mmap.mmap(file, self._elements + ENTRIES * element, offset=PAGES[option])

    def push(self, content: bytes) -> None:
        """Adds an element; there is room."""
        (producer,) = struct.unpack_from("<I", self._memory, self._producer)
        start = self._elements + producer % ENTRIES * self._element
        self._memory[start : start + self._element] = content
        struct.pack_into("<I", self._memory, self._producer, producer + 1 & 0xFFFFFFFF)

    def take(self) -> int:
        """Takes everything out; how many it was."""
        producer, consumer = (struct.unpack_from("<I", self._memory, at)[0] for at in (self._producer, self._consumer))
        struct.pack_into("<I", self._memory, self._consumer, producer)
        return producer - consumer & 0xFFFFFFFF

    def used(self) -> int:
        """How many the other side has not taken."""
        producer, consumer = (struct.unpack_from("<I", self._memory, at)[0] for at in (self._producer, self._consumer))
        return producer - consumer & 0xFFFFFFFF


class Xsk:
    """A socket on queue 0 of an interface, in the network namespace of the calling thread. `metadata`: octets in front of each
    packet for what is asked of the device."""

    def __init__(self, interface: str, *, flags: int = XDP_COPY, metadata: int = 0, umem_flags: int = 0) -> None:
        self.socket = socket.socket(AF_XDP, socket.SOCK_RAW, 0)
        self._metadata = metadata
        self._umem = mmap.mmap(-1, ENTRIES * CHUNK)
        self._place = ctypes.c_char.from_buffer(self._umem)
        umem_flags |= XDP_UMEM_TX_METADATA_LEN if metadata else 0
        size = len(self._umem)
        registration = struct.pack("<QQIIII", ctypes.addressof(self._place), size, CHUNK, 0, umem_flags, metadata)
        self.socket.setsockopt(SOL_XDP, XDP_UMEM_REG, registration)
        for option in PAGES:
            self.socket.setsockopt(SOL_XDP, option, struct.pack("<I", ENTRIES))
        offsets = self.socket.getsockopt(SOL_XDP, XDP_MMAP_OFFSETS, 128)
        self.rings = {option: Ring(self.socket.fileno(), option, offsets, 16 if option in (XDP_RX_RING, XDP_TX_RING) else 8)
                      for option in PAGES}  # fmt: skip
        address = struct.pack("<HHIII", AF_XDP, flags, socket.if_nametoindex(interface), 0, 0)
        deadline = time.monotonic() + LIMIT
        # The socket before may not be gone yet.
        while _LIBC.bind(self.socket.fileno(), address, len(address)) != 0:
            number = ctypes.get_errno()
            if number != errno.EBUSY or time.monotonic() > deadline:
                raise OSError(number, f"bind {interface}: {os.strerror(number)}")
            time.sleep(0.05)
        self._next = 0

    def close(self) -> None:
        """Ends it."""
        self.socket.close()

    def kick(self) -> None:
        """Has the kernel send what is in the TX ring, until it has taken all."""
        deadline = time.monotonic() + LIMIT
        while self.rings[XDP_TX_RING].used():
            # EBUSY: what was dropped counts as sent.
            with contextlib.suppress(BlockingIOError):
                try:
                    self.socket.send(b"", socket.MSG_DONTWAIT)
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOBUFS):
                        raise
            assert time.monotonic() < deadline, "the TX ring is not taken"
        self.rings[XDP_COMPLETION_RING].take()

    def send(self, pieces: bytes | Sequence[bytes], asked: tuple[int, int, int, int] | None = None) -> None:
        """Sends a packet, of one descriptor for each piece. `asked`: flags, csum_start, csum_offset, launch_time."""
        pieces = [pieces] if isinstance(pieces, bytes) else list(pieces)
        for number, piece in enumerate(pieces):
            start = self._next % ENTRIES * CHUNK + self._metadata
            self._next += 1
            self._umem[start : start + len(piece)] = piece
            options = XDP_PKT_CONTD if number + 1 < len(pieces) else 0
            if asked and number == 0:
                content = METADATA.pack(*asked)[: self._metadata]
                self._umem[start - self._metadata : start - self._metadata + len(content)] = content
                options |= XDP_TX_METADATA
            self.rings[XDP_TX_RING].push(struct.pack("<QII", start, len(piece), options))
        self.kick()
