"""`expressway agent` as a process in a lab, and what users without privilege are started with."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from .daemon import Daemon, finish_all
from .lab import Lab
from .paths import BINARY

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


class Agent(Daemon):
    """A running agent. Rules are the TOML of `[[allow]]` tables."""

    def __init__(
        self, lab: Lab, folder: Path, *rules: str, limits: str = "", prefix: tuple[str, ...] = ()
    ) -> None:
        self.lab, self.prefix = lab, prefix
        folder.mkdir(exist_ok=True)
        self.socket = folder / "agent.sock"
        self.config = folder / "agent.toml"
        tables = "".join(f"\n[[allow]]\n{rule}\n" for rule in rules)
        self.config.write_text(f'[agent]\nsocket = "agent.sock"\n{limits}\n{tables}')
        self.log_file = folder / "agent.log"
        self.start()

    def start(self) -> None:
        """Starts it, or another one in its place."""
        self.over = False
        command = self.lab.inside("server", *self.prefix, BINARY, "agent", "--config", self.config)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line == f"ready agent={self.socket}\n", f"{line!r}\n{self.log()}"

    def objects(self) -> set[tuple[str, int]]:
        """None: programs that it attached live by what its clients hold."""
        return set()

    def left(self) -> list[str]:
        """Its socket."""
        return [str(self.socket)] if self.socket.exists() else []


@contextlib.contextmanager
def agents(folder: Path) -> Iterator[Callable[..., Agent]]:
    """Starts agents, with folders of their own; at the end each has to be well, and to end well."""
    running: list[Agent] = []

    def start(lab: Lab, *rules: str, limits: str = "", prefix: tuple[str, ...] = ()) -> Agent:
        running.append(Agent(lab, folder / f"agent-{len(running)}", *rules, limits=limits, prefix=prefix))
        return running[-1]

    try:
        yield start
    finally:
        finish_all(running)
