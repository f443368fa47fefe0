"""Services with what their units leave them (`packaging/systemd`): the agent, those with an XDP program of their own, and the gateway
work with those capabilities."""

import re
import socket
from pathlib import Path

import pytest
from harness import balance, clients, links, router
from harness.agent import NOBODY, UNPRIVILEGED, status
from harness.guard import Guard
from harness.namespace import udp_socket
from harness.paths import CLIP, LIMIT, PORT, ROOT
from harness.server import address

# Of a systemd unit that names no user, as `CapabilityBoundingSet` and `NoNewPrivileges` make it.
NUMBERS = {"NET_BIND_SERVICE": 10, "NET_ADMIN": 12, "NET_RAW": 13, "IPC_LOCK": 14, "PERFMON": 38, "BPF": 39}


def capabilities(unit: str) -> list[str]:
    """Those that a unit may have, without CAP_."""
    text = (ROOT / "packaging" / "systemd" / f"{unit}.service").read_text()
    found = re.search(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE)
    assert found
    return [name.removeprefix("CAP_") for name in found[1].split()]


def as_unit(unit: str) -> tuple[str, ...]:
    """What starts a program as root with nothing else."""
    only = ",".join(f"+{name.lower()}" for name in capabilities(unit))
    return ("setpriv", "--clear-groups", "--inh-caps=-all", f"--bounding-set=-all,{only}", "--no-new-privs")


def mask(unit: str) -> str:
    """The same, as `/proc/PID/status` has it."""
    return f"{sum(1 << NUMBERS[name] for name in capabilities(unit)):016x}"


@pytest.mark.parametrize("mode", ["copy", "hybrid"])
def test_the_agent_needs_no_more(make_lab, start_agent, make_server, readable: Path, mode: str) -> None:
    lab = make_lab()
    rule = f'name = "edge"\nusers = [{NOBODY}]\nlisten = ["0.0.0.0:{PORT}"]\ninterfaces = ["{links.SERVER}"]\n'
    agent = start_agent(lab, rule, prefix=as_unit("expressway-agent"))
    assert status(agent.process.pid)["CapEff"] == mask("expressway-agent")
    more = {"io": {"agent": f'"{agent.socket}"'}}
    root = readable / "root"
    root.mkdir()
    (root / "clip.mp4").write_bytes(CLIP.read_bytes())
    for path in (root, root / "clip.mp4"):
        path.chmod(0o755)
    server = make_server(lab, mode=mode, certificates=readable, root=root, more=more, prefix=UNPRIVILEGED)
    assert server.obtained() == mode
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), readable, ["/clip.mp4"])
    assert (answer.status, answer.sha256) == (200, clients.sha256(CLIP))
    server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)


def test_a_guard_needs_no_more(make_lab, tmp_path: Path) -> None:
    lab = make_lab()
    text = f'interfaces = ["{links.SERVER}"]\nblock = ["{lab.client["ipv4"]}/32"]\n[admin]\nlisten = "127.0.0.1:9190"\n'
    guard = Guard(lab, tmp_path / "guard", text, prefix=as_unit("expressway-guard"))
    try:
        assert guard.ready.startswith("ready "), guard.log()
        assert status(guard.process.pid)["CapEff"] == mask("expressway-guard")
        guard.reload(text.replace("/32", "/31"), "configuration reloaded")
        assert guard.ask("/healthz") == (200, "ok\n")
    finally:
        guard.stop()


def test_a_balancer_needs_no_more(network: balance.Network, tmp_path: Path) -> None:
    """Nor does a check of its nodes."""
    check = '[service.check]\nkind = "tcp"\ninterval = "50ms"\n'
    text = balance.services(["n1", "n2"], check)
    balancer = balance.Balancer(network, tmp_path / "balance", text, prefix=as_unit("expressway-balance"))
    try:
        balancer.wait_ready()
        assert status(balancer.process.pid)["CapEff"] == mask("expressway-balance")
        assert balance.Client(network).ask() in ("n1", "n2")
        balancer.reload(balance.services(["n2"], check))
        assert balance.Client(network).ask() == "n2"
        assert balancer.nodes()[network.address("n2")]["problem"] is None
    finally:
        balancer.stop()


def test_a_router_needs_no_more(tmp_path: Path) -> None:
    """Nor does a feed that it copies."""
    made = router.Network()
    try:
        text = 'interfaces = ["e1", "e2"]\n[[replicate]]\nlisten = "239.1.1.1:5000"\nto = [{ address = "10.2.0.2:6000" }]\n'
        forward = router.Forward(made, tmp_path / "forward", text, prefix=as_unit("expressway-forward")).wait_ready()
        try:
            assert status(forward.process.pid)["CapEff"] == mask("expressway-forward")
            bound = {port: udp_socket(made.hosts[2], socket.AF_INET) for port in (5000, 6000)}
            for port, one in bound.items():
                one.bind(("10.2.0.2", port))
                one.settimeout(LIMIT)
            assert "1 received" in made.ping(1, "10.2.0.2")
            sender = udp_socket(made.hosts[1], socket.AF_INET, "eth0")
            balance.wait_until(
                lambda: all(one["problem"] is None for one in forward.statistics()["feeds"][0]["receivers"]), "never resolved")
            for group, port in (("239.1.1.1", 6000), ("10.2.0.2", 5000)):
                sender.sendto(b"one", (group, 5000))
                assert bound[port].recv(100) == b"one"
            assert forward.forwarded() >= 1
        finally:
            forward.stop()
    finally:
        made.down()
