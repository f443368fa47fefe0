"""`expressway agent` as a process in a lab, and what users without privilege are started with."""

import os
import signal
import subprocess
from pathlib import Path

from .lab import Lab
from .logged import Logged
from .paths import BINARY, LIMIT

NOBODY = 65534

# A user that has nothing, and cannot get anything back.
UNPRIVILEGED = (
    "setpriv",
    f"--reuid={NOBODY}",
    f"--regid={NOBODY}",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
)

# The same user in a user and a network namespace of its own, whose capabilities it gives up too.
CONTAINED = (
    *UNPRIVILEGED[:-1],
    *("unshare", "--user", "--map-root-user", "--net", "sh", "-c"),
    'ip link set lo up && exec setpriv --inh-caps=-all --bounding-set=-all --no-new-privs "$@"',
    "sh",
)


def status(pid: int) -> dict[str, str]:
    """`/proc/PID/status`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


class Agent(Logged):
    """A running agent. Rules are the TOML of `[[allow]]` tables."""

    def __init__(self, lab: Lab, folder: Path, *rules: str, limits: str = "") -> None:
        self.lab = lab
        folder.mkdir(exist_ok=True)
        self.socket = folder / "agent.sock"
        self.config = folder / "agent.toml"
        tables = "".join(f"\n[[allow]]\n{rule}\n" for rule in rules)
        self.config.write_text(f'[agent]\nsocket = "agent.sock"\n{limits}\n{tables}')
        self.log_file = folder / "agent.log"
        self.start()

    def start(self) -> None:
        """Starts it, or another one in its place."""
        command = self.lab.inside("server", BINARY, "agent", "--config", self.config)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line == f"ready agent={self.socket}\n", f"{line!r}\n{self.log()}"

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self.process.kill()
        self.process.wait(LIMIT)

    def stop(self) -> None:
        """SIGTERM; it ends well and takes its socket with it."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
        assert self.process.wait(LIMIT) == 0, self.log()
        assert not self.socket.exists()
