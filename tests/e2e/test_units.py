"""Services with what their units leave them (`packaging/systemd`): the agent, guard and gateway work with those capabilities."""

import re
from pathlib import Path

import pytest
from harness import clients, links
from harness.agent import NOBODY, UNPRIVILEGED, status
from harness.guard import Guard
from harness.paths import CLIP, PORT, ROOT
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
