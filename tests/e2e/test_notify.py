"""Commands that run as services tell their manager when they do their work (sd_notify(3)). Needs root."""

import signal
import socket
import subprocess
from pathlib import Path

import pytest
from harness.lab import Lab
from harness.paths import BINARY, LIMIT

# The configuration of each in a lab's server; `fanout` has flags.
FILES = {
    "agent": '[agent]\nsocket = "agent.sock"\n\n[[allow]]\nname = "all"\nusers = ["root"]\ninterfaces = ["server0"]\nlisten = ["0.0.0.0:443"]\n',
    "guard": 'interfaces = ["server0"]\n',
    "forward": 'interfaces = ["server0"]\n',
    "balance": 'interfaces = ["server0"]\n\n[[service]]\nname = "udp"\nprotocol = "udp"\nlisten = ["198.18.0.9:443"]\n'
    '\n[[service.node]]\naddress = "198.18.0.2"\n',
    "relay": '[[room]]\nname = "news"\nrtp_in = "198.18.0.1:5004"\n',
    "fanout": None,
}


def started(lab: Lab, folder: Path, command: str, manager: Path, **more) -> subprocess.Popen:
    text = FILES[command]
    words = ["--udp", "198.18.0.1:5000", "--tcp", "198.18.0.1:5001"]
    if text is not None:
        (folder / "config.toml").write_text(text)
        words = ["--config", folder / "config.toml"]
    line = lab.inside("server", "env", f"NOTIFY_SOCKET={manager}", BINARY, command, *words)
    return subprocess.Popen(line, text=True, **more)


@pytest.mark.parametrize("command", FILES)
def test_the_manager_is_told_that_it_works(make_lab, tmp_path: Path, command: str) -> None:
    lab = make_lab()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(LIMIT)
        process = started(lab, tmp_path, command, tmp_path / "notify", stdout=subprocess.PIPE)
        try:
            assert manager.recv(4096) == b"READY=1"
            assert process.stdout and process.stdout.readline().startswith("ready "), "said before"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0


def test_who_cannot_start_says_nothing(make_lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "guard", 'interfaces = ["nobody"]\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        process = started(make_lab(), tmp_path, "guard", tmp_path / "notify", stderr=subprocess.PIPE)
        _, said = process.communicate(timeout=LIMIT)
        assert process.returncode == 1 and "nobody" in said
        with pytest.raises(BlockingIOError):
            manager.recv(4096)
