"""The receiver on a real driver: zero-copy reception of addresses and groups, stamped."""

import time
from pathlib import Path

import pytest
from harness.recv import PORT, Peer, Recv
from harness.server import address

GROUP = "239.7.7.7"


@pytest.mark.parametrize("mode", ["zerocopy", "copy", "auto"])
def test_addresses_and_a_group(lab, tmp_path: Path, mode: str) -> None:
    listen = [address(lab.server["ipv4"], PORT), address(lab.server["ipv6"], PORT), f"{GROUP}:{PORT}"]
    recv = Recv(lab, tmp_path, "--io", mode, "--interface", "server0", "--latency", listen=listen)
    try:
        assert recv.wait_ready()["io"] == {"auto": "zerocopy"}.get(mode, mode)
        assert lab.zero_copy_sockets() == [mode != "copy"] * lab.queues, recv.log()
        for family in ("ipv4", "ipv6"):
            Peer(lab, lab.server[family]).send(100, size=1000)
        Peer(lab, GROUP, interface="client0").send(100)
        time.sleep(1)
        report = recv.stop()
    finally:
        if recv.process.poll() is None:
            recv.process.kill()
            recv.wait()
    # Nobody answers for a neighbour before the link is quite up: what the peer sent then is no loss of ours.
    assert report["datagrams"] >= 200 and sum(report["losses"].values()) == 0, report
    assert report["by"]["kernel"] <= 10, report
    stamped = report["stamped"]
    assert stamped["nic"] + stamped["xdp"] >= 200, stamped
    assert report["latency"]["wire"]["count"] == report["datagrams"]
