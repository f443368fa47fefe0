"""A NIC that spreads flows over queues by itself: the hash that it takes, the table that it looks up."""

from pathlib import Path

import pytest
from harness import clients
from harness.server import Server, address

CONNECTIONS = 16


def by_worker(lab, server: Server, certificates: Path) -> list[int]:
    """Opens many connections, each from a port of its own; returns what each worker received by AF_XDP."""
    report = clients.report(
        lab, address(lab.server["ipv4"]), certificates, ["/noise.bin"],
        "-ranges", "0-9999", "-connections", str(CONNECTIONS), "-timeout", "90s",
    )  # fmt: skip
    assert not report.get("error"), report
    assert report["complete"] == CONNECTIONS
    metrics = server.wait_for("all counted", lambda m: m.sum("responses_complete_total") == 2 * CONNECTIONS)
    assert metrics.sum("rx_kernel_packets_total") < metrics.sum("rx_xsk_packets_total")
    return [metrics.sum("rx_xsk_packets_total", worker=str(worker)) for worker in range(lab.queues)]


def test_without_ports_in_the_hash_one_queue_gets_all(lab, make_server, certificates: Path) -> None:
    lab.run("server", "ethtool", "-N", "server0", "rx-flow-hash", "udp4", "sd")
    server = make_server(mode="zerocopy", workers=lab.queues)
    assert "rx-flow-hash udp4 sdfn" in server.log(), "it says what is wrong and what to do"
    received = by_worker(lab, server, certificates)
    assert sum(count > 0 for count in received) == 1, received


def test_with_ports_in_the_hash_all_workers_get_some(lab, make_server, certificates: Path) -> None:
    lab.run("server", "ethtool", "-N", "server0", "rx-flow-hash", "udp4", "sdfn")
    server = make_server(mode="zerocopy", workers=lab.queues)
    assert "rx-flow-hash udp4" not in server.log()
    received = by_worker(lab, server, certificates)
    assert all(received), received
    assert lab.zero_copy_sockets() == [True] * lab.queues


@pytest.mark.parametrize("queue", [0, 1])
def test_the_indirection_table_decides(lab, make_server, certificates: Path, queue: int) -> None:
    lab.run("server", "ethtool", "-N", "server0", "rx-flow-hash", "udp4", "sdfn")
    server = make_server(mode="zerocopy", workers=lab.queues)
    lab.run("server", "ethtool", "-X", "server0", "weight", *("1" if nth == queue else "0" for nth in range(lab.queues)))
    received = by_worker(lab, server, certificates)
    assert [count > 0 for count in received] == [nth == queue for nth in range(lab.queues)], received
    lab.run("server", "ethtool", "-X", "server0", "equal", str(lab.queues))
