"""Runs a command under a kernel that never sends what AF_XDP sockets hold: `silent.py COMMAND…`.

A seccomp filter answers 0 to every `sendto` without data, which is how an AF_XDP socket is kicked, and lets all
other calls through. To the command that is a driver whose bind succeeds and whose transmit queue is silent.
"""

import ctypes
import os
import platform
import struct
import sys

SENDTO = {"x86_64": 44, "aarch64": 206}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
# linux/bpf_common.h, linux/seccomp.h
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ANSWER_ZERO = 0x7FFF0000, 0x00050000


def main() -> None:
    """Installs the filter and becomes the command."""
    # struct seccomp_data: the number at 0, the second argument (the buffer) at 24 and 28.
    program = [
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 5, SENDTO[platform.machine()]),
        (LOAD, 0, 0, 24),
        (EQUAL, 0, 3, 0),
        (LOAD, 0, 0, 28),
        (EQUAL, 0, 1, 0),
        (RETURN, 0, 0, ANSWER_ZERO),
        (RETURN, 0, 0, ALLOW),
    ]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(filters)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header), 0, 0
    ):
        sys.exit(f"silent.py: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[1], sys.argv[1:])


main()
