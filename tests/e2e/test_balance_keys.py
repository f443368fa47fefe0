"""`expressway balance` before gateways with which it shares keys: they rotate, and nobody is restarted or reloaded."""

from pathlib import Path

import pytest
from harness.balance import Balancer, Gateways, Network, services, wait_until
from harness.keys import Shared
from harness.metrics import Metrics
from harness.paths import BINARY, run
from test_balance_quic import Made, download_with_new_ports, gateways, led_by_id

__all__ = ["gateways"]


@pytest.fixture
def keys(tmp_path: Path) -> Shared:
    """A first document."""
    return Shared(tmp_path / "keys")


def text(network: Network, keys: Shared) -> str:
    """A balancer whose QUIC service goes by shared keys."""
    return services(network.nodes).replace('name = "udp"\n', 'name = "udp"\nroute = "quic-lb"\nshared_keys = true\n') + keys.section()


def metric(balancer: Balancer, name: str) -> int:
    """The sum of a metric's samples."""
    return Metrics(balancer.admin("/metrics")).sum(name)


def by_id(balancer: Balancer) -> tuple[int, int]:
    """Packets that went to nodes, and those among them that their connection ID led there."""
    nodes = balancer.nodes(1).values()
    return sum(node["packets"] for node in nodes), sum(node["packets_by_id"] for node in nodes)


def test_connection_ids_lead_to_their_node_while_shared_keys_rotate(
    network: Network, gateways: Gateways, make_balancer: Made, certificates: Path, tmp_path: Path, keys: Shared
) -> None:
    """Three times, so that the keys of the start are gone: what counts are files alone."""
    names = gateways.start(network.nodes, f"shared_keys = true\n{keys.section()}")
    balancer = make_balancer(text(network, keys))
    download_with_new_ports(network, certificates)
    assert led_by_id(balancer) > 0.9
    for rotation in range(1, 4):
        version = keys.rotate()
        wait_until(lambda version=version: metric(balancer, "shared_keys_version") == version, "the balancer never follows")
        for name in names:
            said = lambda name=name: (tmp_path / f"{name}.log").read_text().count("new shared keys")  # noqa: E731
            wait_until(lambda said=said, rotation=rotation: said() == rotation, f"{name} never follows")
        packets, led = by_id(balancer)
        download_with_new_ports(network, certificates)
        packets, led = (now - before for now, before in zip(by_id(balancer), (packets, led), strict=True))
        assert led / packets > 0.9, f"after {rotation} rotations: {led} of {packets}"
    assert balancer.log().count("new shared keys") == 3


def test_a_bad_document_changes_nothing_and_is_told(
    network: Network, gateways: Gateways, make_balancer: Made, certificates: Path, tmp_path: Path, keys: Shared
) -> None:
    """At the start it is an error of the file; later the last good one stays."""
    gateways.start(network.nodes, f"shared_keys = true\n{keys.section()}")
    balancer = make_balancer(text(network, keys))
    first = keys.file.read_bytes()
    version = keys.rotate()
    wait_until(lambda: metric(balancer, "shared_keys_version") == version, "the balancer never follows")
    newest = keys.file.read_bytes()

    keys.put(first)
    wait_until(lambda: metric(balancer, "shared_keys_good") == 0, "an older document is taken")
    assert f"keeping version {version} of the shared keys: {keys.file}: version" in balancer.log()
    assert metric(balancer, "shared_keys_version") == version
    # A reload with it, too: the file is good by itself, and older than what is in use.
    balancer.reload(balancer.config.read_text())
    assert metric(balancer, "shared_keys_version") == version
    keys.put(newest[:-20])
    balancer.signal(1)
    balancer.wait_log("not reloaded")
    download_with_new_ports(network, certificates)
    assert led_by_id(balancer) > 0.9
    balancer.expect("keeping version", "not reloaded")
    keys.put(newest)
    wait_until(lambda: metric(balancer, "shared_keys_good") == 1, "the good one is never seen again")
    config = tmp_path / "wrong.toml"
    config.write_text(text(network, keys).replace(str(keys.file), "/nowhere/shared.keys"))
    with pytest.raises(AssertionError, match="keys.file: /nowhere/shared.keys: cannot be read: No such file"):
        run([BINARY, "balance", "--config", config, "--check"])
