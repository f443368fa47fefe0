"""Sockets of another process's making on a real driver: zero-copy through an agent that runs already, and through the one that
a server keeps for itself. The device is without multi-buffer packets, so that frames have to hold the MTU."""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.agent import Agent
from harness.paths import PORT
from harness.recv import PORT as RECV_PORT
from harness.recv import Peer, Recv
from harness.server import address
from test_gateway import MODES, check_fetches, check_truth

RULE = f"""name = "guest"
users = [0]
listen = ["0.0.0.0:{PORT}", "[::]:{PORT}", "0.0.0.0:{RECV_PORT}"]
interfaces = ["server0"]
"""


@pytest.fixture
def agent(lab, tmp_path: Path) -> Iterator[Agent]:
    """An agent in the server's namespace."""
    made = Agent(lab, tmp_path / "agent", RULE)
    yield made
    made.stop()


@pytest.fixture
def readable(certificates: Path, root: Path, tmp_path: Path) -> Path:
    """The certificates where everyone may read them, as the root may be read."""
    copy = shutil.copytree(certificates, tmp_path / "readable")
    (copy / "key.pem").chmod(0o644)
    for folder in (copy, tmp_path, root, *tmp_path.parents[:2], *root.parents[:2]):
        folder.chmod(0o755)
    return copy


@pytest.mark.parametrize("mode", [*MODES, "auto"])
def test_an_agent_gives_every_mode(lab, make_server, agent: Agent, root: Path, certificates: Path, mode: str) -> None:
    server = make_server(mode=mode, more={"io": {"agent": f'"{agent.socket}"'}})
    obtained = server.obtained()
    assert obtained == mode or (mode == "auto" and obtained in ("zerocopy", "hybrid")), server.log()
    assert lab.zero_copy_sockets() == [MODES[obtained][0]] * lab.queues, server.log()
    requests = check_fetches(lab, root, certificates)
    check_truth(lab, server, obtained, *MODES[obtained], requests)
    assert server.metrics().sum("agent_connected") == 1


@pytest.mark.parametrize("mode", ["zerocopy", "auto"])
def test_a_server_that_becomes_a_user_has_zero_copy(lab, make_server, root: Path, readable: Path, mode: str) -> None:
    server = make_server(mode=mode, certificates=readable, more={"server": {"user": '"nobody"'}})
    obtained = server.obtained()
    assert obtained == mode or obtained in ("zerocopy", "hybrid"), server.log()
    requests = check_fetches(lab, root, readable)
    check_truth(lab, server, obtained, *MODES[obtained], requests)


def test_what_only_receives_is_zero_copy_by_an_agent(lab, agent: Agent, tmp_path: Path) -> None:
    recv = Recv(lab, tmp_path, "--io", "zerocopy", "--agent", str(agent.socket))
    try:
        assert recv.wait_ready()["io"] == "zerocopy"
        assert lab.zero_copy_sockets() == [True] * lab.queues, recv.log()
        Peer(lab, lab.server["ipv4"]).send(200, size=1000)
        time.sleep(1)
        recv.send_signal(signal.SIGTERM)
        assert recv.wait() == 0, recv.log()
    finally:
        if recv.process.poll() is None:
            recv.process.kill()
            recv.wait()
    report = json.loads(recv.output)
    # Nobody answers for a neighbour before the link is quite up.
    assert report["by"]["af_xdp"] >= 100 and report["by"]["kernel"] <= 10, report
