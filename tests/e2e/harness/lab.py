"""Labs, by `expressway lab` as a user has them."""

import contextlib
import json
import subprocess
import time
from pathlib import Path

from .paths import BINARY, run

# For processes that end by themselves, in seconds.
GRACE = 10


class Unsupported(Exception):
    """The running kernel lacks what the lab would need."""


class Lab:
    """One lab that is up. `down` may be called twice."""

    def __init__(self, name: str, **options: str | int | bool) -> None:
        self.name = name
        flags: list[str] = []
        for key, value in options.items():
            flag = f"--{key.replace('_', '-')}"
            flags += [flag] if value is True else [flag, str(value)]
        command = [str(BINARY), "lab", "up", name, *flags, "--json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if "this kernel does not support" in result.stderr:
            raise Unsupported(result.stderr.strip())
        assert result.returncode == 0, f"{command}: {result.stderr}"
        (status,) = json.loads(result.stdout)
        assert status["complete"], status
        namespaces = {namespace["role"]: namespace for namespace in status["namespaces"]}
        self.server = namespaces["server"]["addresses"]
        self.client = namespaces["client"]["addresses"]
        self.server_namespace = namespaces["server"]["namespace"]
        self.client_namespace = namespaces["client"]["namespace"]

    def inside(self, role: str, *command: str | Path) -> list[str]:
        """The command line that runs `command` in the namespace of `role`."""
        return [str(BINARY), "lab", "exec", f"{self.name}/{role}", "--", *map(str, command)]

    def run(self, role: str, *command: str | Path) -> str:
        """Runs a command inside to its end and returns what it printed."""
        return run(self.inside(role, *command))

    def programs(self, role: str) -> list[str]:
        """The interfaces of a namespace that have an XDP program."""
        listed = json.loads(self.run(role, "ip", "-json", "link", "show"))
        return [f"an XDP program on {link['ifname']}" for link in listed if "xdp" in link]

    def processes(self) -> list[str]:
        """What still runs in its namespaces, by name and number."""
        found = []
        for namespace in (self.server_namespace, self.client_namespace):
            for pid in run(["ip", "netns", "pids", namespace]).split():
                # One that has ended meanwhile has no name.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    found.append(f"{Path(f'/proc/{pid}/comm').read_text().strip()} {pid}")
        return found

    def finish(self) -> None:
        """At the end of its test: nothing runs in it any more, and it goes without a trace."""
        try:
            # Agents and launchers end when they see the end of who started them.
            deadline = time.monotonic() + GRACE
            while (outlived := self.processes()) and time.monotonic() < deadline:
                time.sleep(0.02)
        finally:
            self.down()
        names = (self.server_namespace, self.client_namespace)
        stayed = [name for name in names if Path("/run/netns", name).exists()]
        assert not outlived, f"outlived their test: {outlived}"
        assert not stayed, f"namespaces that stayed: {stayed}"

    def add_extra_link(self) -> None:
        """A second link between the namespaces, extra0 to extra1, that a test may take away."""
        link = ("type", "veth", "peer", "name", "extra1", "netns", self.client_namespace)
        self.run("server", "ip", "link", "add", "extra0", *link)
        for role, device, host in (("server", "extra0", 1), ("client", "extra1", 2)):
            self.run(role, "ip", "address", "add", f"198.51.100.{host}/24", "dev", device)
            self.run(role, "ip", "link", "set", device, "up")

    def down(self) -> None:
        """Removes the lab and ends what runs in it."""
        run([BINARY, "lab", "down", self.name])
