"""A server of the AF_XDP device plugin's protocol 0.1, written from its description, with a program of its own.

A text of up to 64 bytes a datagram, over SOCK_SEQPACKET; descriptors by SCM_RIGHTS.
"""

import ctypes
import json
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path

from .bpf import bpf
from .lab import Lab

# It redirects IPv4 UDP of every queue that has a socket: which traffic is taken is the plugin's business.
PROGRAM = """
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#define SEC(name) __attribute__((section(name), used))
typedef unsigned int u32;
struct xdp_md { u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };
static long (*redirect_map)(void *map, u32 key, unsigned long long flags) = (void *)51;
struct { __uint(type, 17); __uint(max_entries, 16); __type(key, u32); __type(value, u32); } xsks SEC(".maps");
SEC("xdp") int plugin_redirect(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + 34 > end || data[12] != 8 || data[13] != 0 || data[23] != 17)
		return 2;
	return redirect_map(&xsks, ctx->rx_queue_index, 2);
}
char _license[] SEC("license") = "Dual BSD/GPL";
"""


def xsk_map(program: int) -> int:
    """The descriptor of the one map of a program."""
    descriptor = bpf(13, struct.pack("<I", program))  # BPF_PROG_GET_FD_BY_ID
    ids = (ctypes.c_uint32 * 1)()
    info = bytearray(232)
    struct.pack_into("<I", info, 52, 1)
    struct.pack_into("<Q", info, 56, ctypes.addressof(ids))
    buffer = ctypes.create_string_buffer(bytes(info), len(info))
    # BPF_OBJ_GET_INFO_BY_FD
    bpf(15, struct.pack("<IIQ", descriptor, len(info), ctypes.addressof(buffer)))
    os.close(descriptor)
    return bpf(14, struct.pack("<I", ids[0]))  # BPF_MAP_GET_FD_BY_ID


def _busy_poll(descriptor: int, timeout: int, budget: int) -> None:
    """What `xsk_socket` samples set: SO_PREFER_BUSY_POLL, SO_BUSY_POLL, SO_BUSY_POLL_BUDGET."""
    # Family and type are given, as Python cannot ask them of an AF_XDP socket; options of SOL_SOCKET are anybody's.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 0, os.dup(descriptor)) as polled:
        for option, value in ((69, 1), (46, timeout), (70, budget)):
            polled.setsockopt(socket.SOL_SOCKET, option, value)


class DevicePlugin:
    """Serves one pod with one device. `asked` is what it was asked; `polls` whether it prepares busy polling."""

    def __init__(self, lab: Lab, folder: Path, pod: str, device: str, version: str = "0.1") -> None:
        self.lab, self.device, self.pod, self.version = lab, device, pod, version
        self.asked: list[str] = []
        self.polls = True
        source, built = folder / "plugin.c", folder / "plugin.o"
        source.write_text(PROGRAM)
        subprocess.run(["clang", "-O2", "-g", "-target", "bpf", "-c", source, "-o", built], check=True)
        lab.run("server", "ip", "link", "set", "dev", device, "xdpdrv", "obj", built, "sec", "xdp")
        (link,) = json.loads(lab.run("server", "ip", "-j", "link", "show", device))
        self.map = xsk_map(link["xdp"]["prog"]["id"])
        self.path = folder / "afxdp.sock"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.path.chmod(0o666)
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        connected = False
        while True:
            text, fds, _, _ = socket.recv_fds(connection, 64, 1)
            if not text:
                return
            request = text.decode()
            self.asked.append(request)
            word, _, rest = request.partition(",")
            answer, sent = "/nak", []
            if word == "/connect" and not connected:
                connected = rest.strip() == self.pod
                answer = "/host_ok" if connected else "/host_nak"
            elif not connected:
                answer = "/error"
            elif request == "/version":
                answer = self.version
            elif word == "/xsk_map_fd":
                answer, sent = ("/fd_ack", [self.map]) if rest.strip() == self.device else ("/fd_nak", [])
            elif word == "/config_busy_poll":
                answer = "/config_busy_poll_ack" if self.polls and fds else "/config_busy_poll_nak"
                if self.polls and fds:
                    _busy_poll(fds[0], *(int(number) for number in rest.split(",")[:2]))
            elif request == "/fin":
                connection.send(b"/fin_ack")
                return
            socket.send_fds(connection, [answer.encode()], sent)
            for descriptor in fds:
                os.close(descriptor)

    def close(self) -> None:
        """Ends it, and takes its program off."""
        self.listener.close()
        os.close(self.map)
        self.lab.run("server", "ip", "link", "set", "dev", self.device, "xdpdrv", "off")
