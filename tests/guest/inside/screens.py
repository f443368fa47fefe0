"""What `expressway top -i` shows of the guest's devices, each picture as a line of JSON: scripts/screens.py draws them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from device_lab import DeviceLab
from harness.paths import BINARY, LIMIT
from taker import connected

COLUMNS, ROWS = 132, 28
# Name, and the keys before its picture.
PICTURES = [("flows", ""), ("lines", "t"), ("hosts", "tv"), ("queues", "vvv\t"), ("sockets", "\t"), ("drops", "\t"),
            ("cpus", "\t"), ("keys", "\t\th")]  # fmt: skip
TMUX = ["tmux", "-u", "-S", "/tmp/screens", "-f", "/dev/null"]
# So much is shown over ten seconds.
SETTLED = 15
PORT, UNUSED = 7000, 9
# By port: datagrams a second, octets, flows.
TRAFFIC = [(PORT, 400, 1200, 12), (PORT, 60, 200, 3), (UNUSED, 20, 64, 2)]


def tmux(*words: str) -> str:
    """A command of tmux."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm", "SHELL": "/busybox/sh"}
    result = subprocess.run([*TMUX, *words], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, f"tmux {words}: {result.stderr}"
    return result.stdout


def shown(text: str) -> str:
    """The screen, once it has that."""
    deadline = time.monotonic() + LIMIT
    while text not in (screen := tmux("capture-pane", "-e", "-p")):
        assert time.monotonic() < deadline, f"never {text!r}: {screen}"
        time.sleep(0.2)
    return screen


def main() -> int:
    """Makes them all."""
    # Terminals, which nothing else in the guest has.
    Path("/dev/pts").mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "devpts", "devpts", "/dev/pts"], check=True)
    lab = DeviceLab()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running: list[subprocess.Popen[bytes]] = []
    try:
        connected(lab, PORT + 1)
        host = lab.server["ipv4"]
        with Path("/tmp/recv.log").open("wb") as log:
            command = lab.inside("server", BINARY, "recv", "--listen", f"{host}:{PORT}", "--io", "zerocopy")
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log))
        deadline = time.monotonic() + LIMIT
        while True not in lab.zero_copy_sockets():
            assert time.monotonic() < deadline, Path("/tmp/recv.log").read_text()
            time.sleep(0.2)
        for port, rate, size, flows in TRAFFIC:
            words = ["--to", f"{host}:{port}", "--rate", str(rate), "--size", str(size), "--flows", str(flows)]
            command = lab.inside("client", BINARY, "gen", "udp", *words, "--source-port", str(50_000 + size), "--seconds", "3000")
            running.append(subprocess.Popen(command, **quiet))
        # Words by themselves, so that no shell is needed.
        top = lab.inside("server", BINARY, "top", "-i", "server0")
        tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), *top)
        shown("server0")
        time.sleep(SETTLED)
        for name, keys in PICTURES:
            for key in keys:
                tmux("send-keys", "Tab" if key == "\t" else key)
            time.sleep(3)
            print("screen " + json.dumps({"name": name, "screen": shown("server0")}), flush=True)
        tmux("kill-server")
    finally:
        for process in running:
            process.terminate()
            process.wait()
        lab.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
