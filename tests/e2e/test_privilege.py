"""`[server] user`: started as root, the server becomes an ordinary user; an agent of its own keeps the privilege."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import clients
from harness.agent import NOBODY, UNPRIVILEGED, status
from harness.paths import BINARY, CLIP, LIMIT
from harness.server import Server, address

USER = {"server": {"user": '"nobody"'}}


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run, without the launcher of its successor."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    running = [int(child) for child in text.split() if status(int(child))["State"][0] != "Z"]
    return [child for child in running if "launch" not in Path(f"/proc/{child}/cmdline").read_text().split("\0")]


def fetch(server: Server, certificates: Path, path: str = "/clip.mp4") -> clients.Answer:
    """One file."""
    (answer,) = clients.fetch(server.lab, "quicgo", address(server.lab.server["ipv4"]), certificates, [path])
    return answer


def wait_until_gone(pid: int) -> None:
    """Waits for the end of a process that is not ours to wait for."""
    deadline = time.monotonic() + LIMIT
    while Path(f"/proc/{pid}").exists() and status(pid)["State"][0] != "Z":
        assert time.monotonic() < deadline, f"{pid} goes on"
        time.sleep(0.02)


@pytest.mark.parametrize("mode", ["copy", "hybrid", "udp"])
def test_the_server_becomes_the_user_for_good(
    make_lab, make_server, readable: Path, tmp_path: Path, mode: str
) -> None:
    lab = make_lab()
    root = tmp_path / "root"
    (root / "below").mkdir(parents=True)
    shutil.copy(CLIP, root / "clip.mp4")
    (root / "below" / "new.txt").write_text("new\n")
    server = make_server(lab, mode=mode, certificates=readable, root=root, more=USER)
    assert server.obtained() == mode
    now = status(server.process.pid)
    server.expect("reload failed")
    assert {now[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert set(now["Uid"].split()) == {str(NOBODY)} and now["Groups"] == "" and now["NoNewPrivs"] == "1"
    for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
        assert status(int(thread.name))["CapPrm"] == "0" * 16, thread
    (agent,) = children(server.process.pid)
    assert status(agent)["Uid"].split()[0] == "0"
    assert fetch(server, readable).sha256 == clients.sha256(CLIP)
    way = "kernel" if mode == "udp" else "xsk"
    server.wait_for("packets", lambda m: m.sum(f"rx_{way}_packets_total") > 0)
    metrics = server.metrics()
    assert [metrics.sum("confined", by=by) for by in ("landlock", "seccomp")] == [1, 1], server.log()
    assert now["Seccomp"] == "2"
    # A reload reads with the user's rights, below the folders of the start.
    server.settings.root = root / "below"
    server.config.write_text(server.settings.text())
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done")
    assert fetch(server, readable, "/new.txt").status == 200
    elsewhere = shutil.copytree(readable, tmp_path / "elsewhere")
    server.settings.certificates = elsewhere
    server.config.write_text(server.settings.text())
    server.signal(signal.SIGHUP)
    server.wait_log("reload failed")
    assert f"{elsewhere}/cert.pem: Permission denied" in server.log()
    assert fetch(server, readable, "/new.txt").status == 200
    server.stop()
    wait_until_gone(agent)


def test_confinement_is_switched_and_reported(make_lab, make_server, readable: Path) -> None:
    lab = make_lab()
    more = {"server": {"user": '"nobody"', "landlock": "false", "seccomp": '"off"'}}
    server = make_server(lab, mode="udp", certificates=readable, more=more)
    assert fetch(server, readable).sha256 == clients.sha256(CLIP)
    assert server.metrics().sum("confined") == 0
    assert status(server.process.pid)["Seccomp"] == "0"
    assert "landlock off, seccomp off" in server.log()


def test_a_user_may_busy_poll(make_lab, make_server, readable: Path) -> None:
    lab = make_lab()
    more = USER | {"io": {"wait": '"busy-poll"'}}
    server = make_server(lab, mode="copy", certificates=readable, more=more)
    assert fetch(server, readable).sha256 == clients.sha256(CLIP)
    server.stop()


def test_the_end_of_either_process(make_lab, make_server, readable: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy", certificates=readable, more=USER)
    (agent,) = children(server.process.pid)
    os.kill(agent, signal.SIGTERM)
    assert fetch(server, readable).sha256 == clients.sha256(CLIP)
    assert server.metrics().sum("agent_connected") == 1, "signals are for the server"
    os.kill(agent, signal.SIGKILL)
    before = server.wait_for("its end seen", lambda m: m.sum("agent_connected") == 0)
    assert fetch(server, readable).sha256 == clients.sha256(CLIP)
    server.wait_for(
        "more packets by AF_XDP",
        lambda m: m.sum("rx_xsk_packets_total") > before.sum("rx_xsk_packets_total"),
    )
    server.stop()
    server = make_server(lab, mode="copy", certificates=readable, more=USER)
    (agent,) = children(server.process.pid)
    server.kill()
    wait_until_gone(agent)
    assert "xdp" not in lab.run("server", "ip", "link", "show", "server0")


def test_what_the_user_cannot_read_and_who_there_is_not_are_errors_at_start(
    make_lab, make_server, readable: Path, certificates: Path
) -> None:
    lab = make_lab()
    unreadable = make_server(lab, ready=False, certificates=certificates, more=USER)
    assert unreadable.wait() == 2
    assert ".pem: Permission denied" in unreadable.log(), unreadable.log()
    check = [BINARY, "serve", "--config", unreadable.config, "--check"]
    checked = subprocess.run(check, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert checked.returncode == 2 and ".pem: Permission denied" in checked.stderr, checked.stderr
    nobody = {"server": {"user": '"no-such-user"'}}
    unknown = make_server(lab, ready=False, certificates=readable, more=nobody)
    assert unknown.wait() == 2
    assert "no such user: `no-such-user`" in unknown.log() and "server.user" in unknown.log(), unknown.log()
    other = {"server": {"user": '"daemon"'}}
    powerless = make_server(lab, ready=False, certificates=readable, prefix=UNPRIVILEGED, more=other)
    assert powerless.wait() == 1
    assert "needs root" in powerless.log(), powerless.log()


def test_logs_are_written_and_reopened_under_confinement(make_lab, make_server, readable: Path, tmp_path: Path) -> None:
    lab = make_lab()
    logs = tmp_path / "logs"
    (logs / "qlog").mkdir(parents=True)
    for folder in (logs, logs / "qlog"):
        os.chown(folder, NOBODY, NOBODY)
    more = {
        "server": USER["server"],
        "log": {"access": f'"{logs}/access.log"'},
        "tls": {"keylog": f'"{logs}/keys.log"'},
        "quic": {"qlog": f'"{logs}/qlog"'},
    }
    server = make_server(lab, mode="copy", certificates=readable, more=more)
    assert fetch(server, readable).status == 200
    (logs / "access.log").rename(logs / "access.old")
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done")
    assert fetch(server, readable).status == 200
    server.stop()
    for name in ("access.old", "access.log", "keys.log"):
        assert (logs / name).stat().st_size > 0, name
    assert list((logs / "qlog").iterdir())
