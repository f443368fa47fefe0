"""`expressway dump` on a real driver: what another program's AF_XDP sockets, DPDK's, receive and send."""

import json
import os
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest
from device_lab import DeviceLab
from harness.captures import written
from harness.namespace import udp_socket
from harness.paths import LIMIT
from taker import Taker, connected

PORT = 7000
# Asked for by tests that wait; not counted.
WARM_UP = 7001
MODES = {"zerocopy": "xsk zero-copy", "copy": "xsk copy"}
POINTS = {"zerocopy": "xsk_zero_copy", "copy": "xsk_copy"}


class Testpmd:
    """DPDK's testpmd on the server's device: swaps the addresses of Ethernet and sends back."""

    __test__ = False

    def __init__(self, lab: DeviceLab, folder: Path, mode: str) -> None:
        self.log_file = folder / "testpmd.log"
        # With busy polling, which it does unless told otherwise, a datagram by itself did not come back in zero-copy mode.
        device = "net_af_xdp0,iface=server0,busy_budget=0" + (",force_copy=1" if mode == "copy" else "")
        command = lab.inside(
            "server", "dpdk-testpmd", "--lcores", "0@0,1@1", "--no-shconf", "--no-huge", "--no-pci", "--no-telemetry",
            "-m", "256", "--vdev", device, "--", "--forward-mode=macswap", "--auto-start", "--nb-cores=1",
            "--total-num-mbufs=16384", "--no-mlockall", "--stats-period=3600",
        )  # fmt: skip
        environment = {**os.environ, "RUNTIME_DIRECTORY": str(folder)}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def log(self) -> str:
        """What it said."""
        return self.log_file.read_text(errors="replace")

    def end(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(LIMIT)


class Echo:
    """Datagrams from the client's kernel that come back with their Ethernet addresses swapped."""

    def __init__(self, lab: DeviceLab) -> None:
        self._lab = lab
        self._socket = udp_socket(lab.client_namespace, socket.AF_INET)

    def send(self, port: int, number: int) -> None:
        """One datagram."""
        self._socket.sendto(struct.pack("!Q", number).ljust(100 + number % 1000, b"\xa5"), (self._lab.server["ipv4"], port))


def swapped(frame: bytes) -> bytes:
    """With the other's address first."""
    return frame[6:12] + frame[:6] + frame[12:]


@pytest.mark.parametrize("mode", MODES)
def test_another_programs_sockets_are_shown_both_ways(lab, make_dump, tmp_path: Path, mode: str) -> None:
    connected(lab, WARM_UP)
    before = make_dump("--json", f"udp port {PORT} or udp port {WARM_UP}")
    echo, warm, taker = Echo(lab), Taker(lab, WARM_UP), Taker(lab, PORT)
    testpmd = Testpmd(lab, tmp_path, mode)
    try:
        # Until it sends back, and the capture that was there first has found its program.
        deadline = time.monotonic() + LIMIT
        while not warm.take(1, 0.2) or '"verdict":"redirect"' not in before.output.read_text():
            assert testpmd.process.poll() is None and time.monotonic() < deadline, testpmd.log()
            echo.send(WARM_UP, 0)
        assert lab.zero_copy_sockets() == [mode == "zerocopy"], testpmd.log()
        file = tmp_path / "after.pcapng"
        after = make_dump("-w", file, f"udp port {PORT}")
        frames = []
        for number in range(300):
            echo.send(PORT, number)
            frames += taker.take(1)
            assert len(frames) == number + 1, f"datagram {number} did not come back\n{testpmd.log()}"
        assert after.end() == 2 * len(frames), after.log()
        packets = written(file)
        sent = [(data, text) for data, text in packets if text.startswith(MODES[mode])]
        received = [(data, text) for data, text in packets if not text.startswith("xsk")]
        assert [data for data, _ in sent] == frames
        assert [data for data, _ in received] == [swapped(frame) for frame in frames]
        # Whose a socket is may be found out after its first packets.
        assert all(f"pid {testpmd.process.pid} " in text for _, text in packets[10:]), {text for _, text in packets}
        before.end()
        shown = [json.loads(line) for line in before.lines()]
        shown = [one for one in shown if one["destination_port"] == PORT]
        assert [one["point"] for one in shown].count(POINTS[mode]) == len(frames), shown[:4]
        assert sum(one.get("verdict") == "redirect" for one in shown) == len(frames), shown[:4]
        assert {one["process"]["pid"] for one in shown} == {testpmd.process.pid}
    finally:
        testpmd.end()
