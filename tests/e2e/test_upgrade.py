"""`expressway upgrade`: another process in a server's place, and no client that notices."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import clients
from harness.agent import NOBODY, UNPRIVILEGED, status
from harness.namespace import run_inside
from harness.paths import BINARY, CLIENTS, HOST, LIMIT, LONG_CLIP, PEERS, PORT
from harness.server import Server, address
from harness.transfer import download, loop
from harness.upgrade import Succession, runs, succession, wait_until_gone

# Old connections may take as long as they like, and what is told to end does so soon.
PATIENT = {"server": {"upgrade_drain": '"10m"', "drain": '"60s"'}}


def fetch(server: Server, certificates: Path, name: str = "quicgo") -> None:
    """A small file on a new connection."""
    (answer,) = clients.fetch(server.lab, name, address(server.lab.server["ipv4"]), certificates, ["/small.txt"])
    assert answer.status == 200


@pytest.mark.parametrize("mode", ["udp", "copy"])
def test_a_download_over_http3_goes_through_an_upgrade(make_lab, make_server, certificates: Path, mode: str) -> None:
    lab = make_lab()
    server = make_server(lab, mode=mode, workers=2, more=PATIENT)
    with succession(server) as processes, download(server, certificates, "3", path="/long.mp4") as under_way:
        new = processes.upgrade()
        assert under_way.is_under_way() and runs(server.process.pid)
        # The admin listener is the new process's, and says so.
        found = processes.generations()
        assert (found["generation"], found["pid"]) == (2, new)
        assert [(old["generation"], old["pid"], old["has_ended"]) for old in found["older"]] == [(1, server.process.pid, False)]
        metrics = server.metrics()
        assert (metrics.sum("generation"), metrics.sum("older_processes")) == (2, 1)
        for name in clients.CLIENT_NAMES:
            fetch(server, certificates, name)
        server.wait_for("connections of the new process", lambda m: m.sum("connections_established_total") >= len(clients.CLIENT_NAMES))
        way = "kernel" if mode == "udp" else "xsk"
        server.wait_for("packets by its data path", lambda m: m.sum(f"rx_{way}_packets_total") > 0)
        server.wait_for("datagrams for the old process", lambda m: m.sum("forwarded_older_total") > 0)
        under_way.finish(LONG_CLIP)
        # Nobody is connected to it any more.
        assert processes.first_ends() == 0, server.log()
        server.wait_for("no older process", lambda m: m.sum("older_processes") == 0)


@pytest.mark.parametrize("version", ["2", "1.1"])
def test_a_download_over_tcp_goes_through_an_upgrade(make_lab, make_server, certificates: Path, version: str) -> None:
    server = make_server(make_lab(), mode="udp", more=PATIENT)
    with succession(server) as processes, download(server, certificates, version, path="/long.mp4") as under_way:
        processes.upgrade()
        assert under_way.is_under_way() and runs(server.process.pid)
        fetch(server, certificates)
        under_way.finish(LONG_CLIP)
        assert processes.first_ends() == 0, server.log()


def test_no_client_fails_during_ten_upgrades_under_load(make_lab, make_server, certificates: Path, root: Path) -> None:
    server = make_server(make_lab(), mode="udp", workers=2, more=PATIENT)
    with succession(server) as processes, contextlib.ExitStack() as load:
        for _ in range(2):
            load.enter_context(loop(server, certificates, "/clip.mp4", root / "clip.mp4"))
        for _ in range(10):
            pid = processes.upgrade()
            assert processes.generations()["pid"] == pid
            # The limit of older processes is not what is tested.
            while sum(not old["has_ended"] for old in processes.generations()["older"]) >= 5:
                time.sleep(0.1)
    assert not any(runs(pid) for pid in processes.pids)


def test_no_client_fails_during_upgrades_over_af_xdp(make_lab, make_server, certificates: Path, root: Path) -> None:
    server = make_server(make_lab(), mode="copy", workers=2, more=PATIENT)
    with succession(server) as processes, loop(server, certificates, "/clip.mp4", root / "clip.mp4"):
        for _ in range(3):
            processes.upgrade()


def test_three_generations_at_once(make_lab, make_server, certificates: Path) -> None:
    server = make_server(make_lab(), mode="udp", workers=2, more=PATIENT)
    with succession(server) as processes, contextlib.ExitStack() as stack:
        downloads = [stack.enter_context(download(server, certificates, "3", path="/long.mp4"))]
        for _ in range(2):
            processes.upgrade()
            downloads.append(stack.enter_context(download(server, certificates, "3", path="/long.mp4")))
        assert all(runs(pid) for pid in processes.pids)
        found = processes.generations()
        assert [old["generation"] for old in found["older"]] == [1, 2]
        server.wait_for("datagrams for both", lambda _: all(old["forwarded"] for old in processes.generations()["older"]))
        for under_way in downloads:
            assert under_way.is_under_way()
        for under_way in downloads:
            under_way.finish(LONG_CLIP)
        assert processes.first_ends() == 0, server.log()
        wait_until_gone(processes.pids[1])


def copied(tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    """A copy of the binary that the test may replace, and how a server is started by it."""
    program = tmp_path / "expressway"
    shutil.copy2(BINARY, program)
    return program, ("sh", "-c", f'shift; exec {program} "$@"', "sh")


def replace(program: Path, text: str) -> None:
    """Puts a script in its place, as a package manager does: under the same name, another file."""
    new = program.with_suffix(".new")
    new.write_text(f"#!/bin/sh\n{text}\n")
    new.chmod(0o755)
    new.rename(program)


def still_serves(processes: Succession, certificates: Path, mode: str) -> None:
    """As if nothing had been."""
    server = processes.server
    assert processes.generations() | {"age_seconds": 0} == {
        "generation": 1, "pid": server.process.pid, "age_seconds": 0, "older": []
    }
    assert server.ask("/healthz")[0] == 200
    way = "kernel" if mode == "udp" else "xsk"
    before = server.metrics().sum(f"rx_{way}_packets_total")
    # AF_XDP is there again soon.
    deadline = time.monotonic() + LIMIT
    while server.metrics().sum(f"rx_{way}_packets_total") <= before:
        fetch(server, certificates)
        assert time.monotonic() < deadline, server.log()


@pytest.mark.parametrize("mode", ["udp", "copy"])
def test_a_mistake_in_the_configuration_leaves_the_old_process_serving(
    make_lab, make_server, certificates: Path, mode: str
) -> None:
    server = make_server(make_lab(), mode=mode, more=PATIENT)
    server.expect("upgrade failed")
    with succession(server) as processes, download(server, certificates, "3", path="/long.mp4") as under_way:
        good = server.config.read_text()
        for bad, said in [
            (good.replace("root =", "rot ="), "rot"),
            (good.replace("workers = 1", "workers = 3"), "restart it instead"),
            (good.replace("cert.pem", "none.pem"), "none.pem"),
            (good + "\n[tcp]\nworkers = 3\n", "TCP"),
            # A veth has none, which shows when the interfaces have been given up.
            (good.replace(f'mode = "{mode}"', 'mode = "zerocopy"'), "zerocopy"),
        ]:
            server.config.write_text(bad)
            result = processes.ask()
            assert result.returncode == 1 and said in result.stderr, result.stderr
            assert len(result.stderr.strip().splitlines()) == 1, result.stderr
            still_serves(processes, certificates, mode)
        server.config.write_text(good)
        processes.upgrade()
        fetch(server, certificates)
        under_way.finish(LONG_CLIP)


def test_upgrades_that_fail_leave_the_admin_sockets_name(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    server = make_server(make_lab(), mode="udp", more=PATIENT | {"admin": {"listen": f'"unix:{path}"'}})
    server.expect("upgrade failed")
    with succession(server, f"unix:{path}") as processes:
        good = server.config.read_text()
        server.config.write_text(good.replace("cert.pem", "none.pem"))
        for _ in range(2):
            result = processes.ask()
            assert result.returncode == 1 and "none.pem" in result.stderr, result.stderr
            assert path.is_socket()
        server.config.write_text(good)
        for _ in range(2):
            processes.upgrade()
            assert path.is_socket()
        fetch(server, certificates)
    assert not path.exists(), "it goes with the last"


def test_a_server_that_stops_listens_no_more(make_lab, make_server, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp", more=PATIENT)

    def connect() -> None:
        socket.create_connection((lab.server["ipv4"], PORT), timeout=LIMIT).close()

    run_inside(lab.client_namespace, connect)
    with download(server, certificates, "2", path="/long.mp4") as under_way:
        server.signal(signal.SIGTERM)
        server.wait_log("draining open connections")
        deadline = time.monotonic() + LIMIT
        with pytest.raises(ConnectionRefusedError):
            while time.monotonic() < deadline:
                run_inside(lab.client_namespace, connect)
                time.sleep(0.05)
        assert under_way.is_under_way() and server.process.poll() is None
    assert server.process.wait(LIMIT) == 0, server.log()
    server.over = True


@pytest.mark.parametrize(
    ("script", "said"),
    [("exit 7", "exit code 7"), ("kill -9 $$", "signal 9"), ("exec sleep 600", "not ready within 1s")],
    ids=["ends", "killed", "hangs"],
)
@pytest.mark.parametrize("mode", ["udp", "copy"])
def test_a_new_binary_that_does_not_serve_changes_nothing(
    make_lab, make_server, certificates: Path, tmp_path: Path, mode: str, script: str, said: str
) -> None:
    program, prefix = copied(tmp_path)
    more = {"server": PATIENT["server"] | {"upgrade_timeout": '"1s"'}}
    server = make_server(make_lab(), mode=mode, prefix=prefix, more=more)
    server.expect("upgrade failed")
    with succession(server) as processes:
        replace(program, script)
        result = processes.ask()
        assert result.returncode == 1 and said in result.stderr, f"{result.stderr}\n{server.log()}"
        still_serves(processes, certificates, mode)


@pytest.mark.parametrize("point", ["certificate", "keylog"])
@pytest.mark.parametrize("mode", ["udp", "copy"])
def test_a_new_process_that_is_killed_before_it_is_ready(
    make_lab, make_server, certificates: Path, tmp_path: Path, mode: str, point: str
) -> None:
    server = make_server(make_lab(), mode=mode, more=PATIENT)
    server.expect("upgrade failed")
    # Who opens it waits for somebody at the other end: before anything is asked of the old process, or in the midst.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    good = server.config.read_text()
    held = {
        "certificate": good.replace(f"{certificates}/cert.pem", str(pipe)),
        "keylog": good.replace("[tls]\n", f'[tls]\nkeylog = "{pipe}"\n'),
    }[point]
    with succession(server) as processes, download(server, certificates, "3", path="/long.mp4") as under_way:
        server.config.write_text(held)
        server.signal(signal.SIGUSR2)
        server.wait_log("the next process is running")
        if point == "keylog":
            server.wait_log("the next process is prepared")
        new = int(server.log().rsplit("the next process is running pid=", 1)[1].split()[0])
        os.kill(new, signal.SIGKILL)
        server.wait_log("upgrade failed, this process keeps serving: the next process ended (signal 9)")
        still_serves(processes, certificates, mode)
        under_way.finish(LONG_CLIP)


def test_the_old_process_is_killed_while_it_drains(make_lab, make_server, certificates: Path) -> None:
    server = make_server(make_lab(), mode="udp", workers=2, more=PATIENT)
    with succession(server) as processes, download(server, certificates, "3", path="/long.mp4") as under_way:
        processes.upgrade()
        server.kill()
        # The newest resets its connections, in the name of the server that both were.
        server.wait_for("a reset", lambda m: m.sum("resets_sent_total") > 0)
        assert under_way.process.wait(LIMIT) != 0
        assert under_way.process.stderr
        fetch(server, certificates)
        server.wait_for("it is not there any more", lambda m: m.sum("older_processes") == 0)
        # And the next upgrade is one as ever.
        processes.upgrade()
        fetch(server, certificates)


def test_old_connections_end_at_the_limit(make_lab, make_server, certificates: Path) -> None:
    server = make_server(make_lab(), mode="udp", more={"server": {"upgrade_drain": '"2s"'}})
    with (
        succession(server) as processes,
        download(server, certificates, "3", path="/long.mp4", rate=2_000_000) as by_udp,
        download(server, certificates, "1.1", path="/long.mp4", rate=2_000_000) as by_tcp,
    ):
        processes.upgrade()
        assert processes.first_ends() == 0, server.log()
        assert by_udp.process.wait(LIMIT) != 0
        assert by_tcp.process.wait(LIMIT) != 0
        fetch(server, certificates)


def test_sigterm_ends_a_process_that_has_been_succeeded(make_lab, make_server, certificates: Path) -> None:
    more = {"server": {"upgrade_drain": '"10m"', "drain": '"1s"'}}
    server = make_server(make_lab(), mode="udp", more=more)
    with succession(server) as processes, download(server, certificates, "3", path="/long.mp4", rate=100_000) as under_way:
        processes.upgrade()
        assert under_way.is_under_way()
        server.signal(signal.SIGTERM)
        assert processes.first_ends() == 0, server.log()
        fetch(server, certificates)


def test_the_newest_is_killed_while_an_older_one_drains(make_lab, make_server, certificates: Path) -> None:
    server = make_server(make_lab(), mode="udp", workers=2, more=PATIENT)
    server.expect("had taken over, has ended")
    with succession(server) as processes, download(server, certificates, "3", path="/long.mp4") as under_way:
        new = processes.upgrade()
        os.kill(new, signal.SIGKILL)
        wait_until_gone(new)
        # Its own connections end well, and it says that something was wrong.
        under_way.finish(LONG_CLIP)
        assert processes.first_ends() == 1, server.log()


def test_sigusr2_upgrades_and_the_service_manager_is_told(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    manager = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(manager))
        told.settimeout(LIMIT)
        server = make_server(make_lab(), mode="udp", prefix=("env", f"NOTIFY_SOCKET={manager}"), more=PATIENT)
        with succession(server) as processes:
            assert told.recv(4096) == b"READY=1"
            server.signal(signal.SIGUSR2)
            words = dict(line.split("=") for line in told.recv(4096).decode().splitlines())
            assert words["READY"] == "1" and words["MAINPID"] != str(server.process.pid)
            processes.pids.append(int(words["MAINPID"]))
            assert processes.generations()["pid"] == processes.pids[-1]
            fetch(server, certificates)
            assert processes.first_ends() == 0, server.log()
            os.kill(processes.pids[-1], signal.SIGTERM)
            assert told.recv(4096) == b"STOPPING=1"


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_a_user_without_privilege_is_succeeded(make_lab, make_server, readable: Path, mode: str) -> None:
    more = {"server": PATIENT["server"] | {"user": '"nobody"'}}
    server = make_server(make_lab(), mode=mode, certificates=readable, more=more)
    with succession(server) as processes, download(server, readable, "3", path="/long.mp4") as under_way:
        for _ in range(2):
            new = processes.upgrade()
            now = status(new)
            assert set(now["Uid"].split()) == {str(NOBODY)} and now["CapEff"] == "0" * 16 and now["Seccomp"] == "2"
            fetch(server, readable)
        way = "kernel" if mode == "udp" else "xsk"
        server.wait_for("packets by its data path", lambda m: m.sum(f"rx_{way}_packets_total") > 0)
        under_way.finish(LONG_CLIP)
        assert processes.first_ends() == 0, server.log()


def test_both_processes_are_clients_of_the_agent(make_lab, make_server, start_agent, readable: Path) -> None:
    lab = make_lab()
    agent = start_agent(lab, f'name = "edge"\nusers = [{NOBODY}]\nlisten = ["{address(lab.server["ipv4"])}"]\ninterfaces = ["server0"]\nclients = 2')
    more = PATIENT | {"io": {"agent": f'"{agent.socket}"'}}
    server = make_server(lab, mode="copy", certificates=readable, prefix=UNPRIVILEGED, more=more)
    with succession(server) as processes, download(server, readable, "3", path="/long.mp4") as under_way:
        # An older process is no client any more.
        for _ in range(2):
            processes.upgrade()
            fetch(server, readable)
        server.wait_for("packets by AF_XDP", lambda m: m.sum("rx_xsk_packets_total") > 0)
        under_way.finish(LONG_CLIP)
        assert processes.first_ends() == 0, server.log()


def test_the_cache_on_disk_goes_along(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    store = tmp_path / "cache"
    store.mkdir()
    more = PATIENT | {"cache": {"disk": f'"{store}"'}}
    server = make_server(make_lab(), mode="udp", more=more)
    server.expect("upgrade failed")
    with succession(server) as processes:
        good = server.config.read_text()
        # The data path is what fails: the store was left by then, and is taken back.
        server.config.write_text(good.replace('mode = "udp"', 'mode = "zerocopy"'))
        result = processes.ask()
        assert result.returncode == 1 and "zerocopy" in result.stderr, result.stderr
        assert "disk store is no longer written" not in server.log()
        server.config.write_text(good)
        processes.upgrade()
        assert processes.first_ends() == 0, server.log()
        fetch(server, certificates)
