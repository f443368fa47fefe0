"""XDP programs of a few instructions, loaded and attached by bare system calls."""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .bpf import bpf
from .lab import Lab
from .namespace import run_inside

# linux/bpf.h
BPF_MAP_CREATE, BPF_MAP_UPDATE_ELEM, BPF_PROG_LOAD, BPF_BTF_LOAD, BPF_LINK_CREATE = 0, 2, 5, 18, 28
BPF_MAP_TYPE_DEVMAP, BPF_MAP_TYPE_XSKMAP, BPF_PROG_TYPE_XDP, BPF_XDP = 14, 17, 6, 37
BPF_F_BROADCAST = 8
# linux/if_link.h
MODES = {"generic": 2, "native": 4}
ABORTED, DROP, PASS = range(3)


def instruction(code: int, to: int = 0, of: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """struct bpf_insn."""
    return struct.pack("<BBhi", code, to | of << 4, offset, value)


def verdict(number: int) -> list[bytes]:
    """Returns it."""
    return [instruction(0xB7, 0, value=number), instruction(0x95)]


def redirect(interface: int) -> list[bytes]:
    """bpf_redirect to an interface."""
    arguments = [instruction(0xB7, 1, value=interface), instruction(0xB7, 2)]
    return [*arguments, instruction(0x85, value=23), instruction(0x95)]


def to_first(table: int, flags: int = PASS) -> list[bytes]:
    """bpf_redirect_map to the first member of a map, or with BPF_F_BROADCAST to all."""
    load = [instruction(0x18, 1, 1, value=table), instruction(0)]
    arguments = [instruction(0xB7, 2), instruction(0xB7, 3, value=flags)]
    return [*load, *arguments, instruction(0x85, value=51), instruction(0x95)]


def socket_map(member: socket.socket) -> int:
    """A descriptor of an XSKMAP with that socket."""
    return _map_of(BPF_MAP_TYPE_XSKMAP, [member.fileno()])


def device_map(lab: Lab, interfaces: Sequence[int]) -> int:
    """A descriptor of a devmap with those interfaces of the server."""
    return run_inside(lab.server_namespace, lambda: _map_of(BPF_MAP_TYPE_DEVMAP, interfaces))


def _map_of(kind: int, members: Sequence[int]) -> int:
    table = bpf(BPF_MAP_CREATE, struct.pack("<IIII", kind, 4, 4, len(members)))
    for number, member in enumerate(members):
        key, value = ctypes.c_uint32(number), ctypes.c_uint32(member)
        bpf(BPF_MAP_UPDATE_ELEM, struct.pack("<IxxxxQQQ", table, ctypes.addressof(key), ctypes.addressof(value), 0))
    return table


def types() -> int:
    """A descriptor of BTF with `int strange(struct xdp_md *context)`, without which nobody can trace a program."""
    names = b"\0int\0xdp_md\0context\0strange\0"
    name = lambda text: names.index(b"\0" + text + b"\0") + 1
    # linux/btf.h: INT, STRUCT, PTR to it, FUNC_PROTO of both, FUNC (type 5).
    described = [
        struct.pack("<IIII", name(b"int"), 1 << 24, 4, 1 << 24 | 32),
        struct.pack("<III", name(b"xdp_md"), 4 << 24, 24),
        struct.pack("<III", 0, 2 << 24, 2),
        struct.pack("<IIIII", 0, 13 << 24 | 1, 1, name(b"context"), 3),
        struct.pack("<III", name(b"strange"), 12 << 24 | 1, 4),
    ]
    body = b"".join(described)
    blob = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(body), len(body), len(names)) + body + names
    content = ctypes.create_string_buffer(blob, len(blob))
    return bpf(BPF_BTF_LOAD, struct.pack("<QQIII", ctypes.addressof(content), 0, len(blob), 0, 0))


def load(instructions: Sequence[bytes]) -> int:
    """A descriptor of the program."""
    code, licence = ctypes.create_string_buffer(b"".join(instructions)), ctypes.create_string_buffer(b"GPL")
    # From its first instruction on it is type 5.
    function, described = ctypes.create_string_buffer(struct.pack("<II", 0, 5), 8), types()
    attribute = struct.pack(
        "<IIQQIIQII16sIIIIQI", BPF_PROG_TYPE_XDP, len(instructions), ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0,
        0, 0, b"strange", 0, BPF_XDP, described, 8, ctypes.addressof(function), 1,
    )  # fmt: skip
    try:
        return bpf(BPF_PROG_LOAD, attribute)
    finally:
        os.close(described)


@contextmanager
def attached(lab: Lab, interface: str, instructions: Sequence[bytes], mode: str) -> Iterator[None]:
    """The program on an interface of the server."""
    program = load(instructions)

    def link() -> int:
        index = socket.if_nametoindex(interface)
        return bpf(BPF_LINK_CREATE, struct.pack("<IIII", program, index, BPF_XDP, MODES[mode]))

    held = run_inside(lab.server_namespace, link)
    try:
        yield
    finally:
        os.close(held)
        os.close(program)
