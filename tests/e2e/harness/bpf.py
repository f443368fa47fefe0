"""BPF objects of the kernel: which of them a process holds, and whether they are still there."""

import ctypes
import errno
import os
import re
import struct
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_BPF = 321 if os.uname().machine == "x86_64" else 280

# linux/bpf.h: BPF_PROG_GET_FD_BY_ID, BPF_MAP_GET_FD_BY_ID, BPF_LINK_GET_FD_BY_ID.
_GET_FD = {"prog": 13, "map": 14, "link": 30}
_ID = re.compile(r"^(prog|map|link)_id:\s*(\d+)$", re.MULTILINE)


def bpf(command: int, attribute: bytes) -> int:
    """bpf(2)."""
    buffer = ctypes.create_string_buffer(attribute, max(len(attribute), 128))
    result = _LIBC.syscall(_SYS_BPF, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf command {command}")
    return result


def held(pid: int) -> set[tuple[str, int]]:
    """The programs, maps and links that a process has descriptors of."""
    found: set[tuple[str, int]] = set()
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            found |= {(kind, int(number)) for kind, number in _ID.findall(path.read_text())}
        except FileNotFoundError:
            # Closed meanwhile.
            continue
    return found


def exists(kind: str, number: int) -> bool:
    """Whether an object is there."""
    try:
        descriptor = bpf(_GET_FD[kind], struct.pack("<I", number))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    os.close(descriptor)
    return True
