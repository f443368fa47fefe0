"""The guest's two devices as a lab: one in the server's namespace, the other in the client's."""

import itertools
import os
import subprocess
from pathlib import Path

from harness.lab import Lab
from harness.paths import run

_NUMBERS = itertools.count()


class DeviceLab:
    """As `harness.lab.Lab`, on real drivers. `down` gives the devices back."""

    def __init__(self) -> None:
        names = os.environ["EXPRESSWAY_TEST_DEVICES"].split()
        self.queues = int(os.environ["EXPRESSWAY_TEST_QUEUES"])
        self.server = {"ipv4": "10.78.0.1", "ipv6": "fd78::1"}
        self.client = {"ipv4": "10.78.0.2", "ipv6": "fd78::2"}
        number = next(_NUMBERS)
        self.server_namespace, self.client_namespace = f"server-{number}", f"client-{number}"
        self._devices: list[tuple[str, str, str]] = []
        sides = {"server": self.server, "client": self.client}
        for name, (role, addresses) in zip(names, sides.items(), strict=True):
            namespace, inside = self._namespace(role), f"{role}0"
            run(["ip", "netns", "add", namespace])
            run(["ip", "-n", namespace, "link", "set", "lo", "up"])
            run(["ip", "link", "set", name, "netns", namespace, "name", inside])
            self._devices.append((namespace, inside, name))
            run(["ip", "-n", namespace, "address", "add", f"{addresses['ipv4']}/24", "dev", inside])
            run(["ip", "-n", namespace, "address", "add", f"{addresses['ipv6']}/64", "dev", inside, "nodad"])
            run(["ip", "-n", namespace, "link", "set", inside, "up"])

    def _namespace(self, role: str) -> str:
        return self.server_namespace if role == "server" else self.client_namespace

    def inside(self, role: str, *command: str | Path) -> list[str]:
        """The command line that runs `command` in the namespace of `role`."""
        return ["ip", "netns", "exec", self._namespace(role), *map(str, command)]

    def run(self, role: str, *command: str | Path) -> str:
        """Runs a command inside to its end and returns what it printed."""
        return run(self.inside(role, *command))

    def hash_ports(self) -> None:
        """Has the server's device spread UDP flows by their ports, where that can be chosen."""
        command = self.inside("server", "ethtool", "-N", "server0", "rx-flow-hash", "udp4", "sdfn")
        subprocess.run(command, check=False, capture_output=True)

    # What is asked of a lab's namespaces is the same.
    programs = Lab.programs

    def zero_copy_sockets(self) -> list[bool]:
        """Of each AF_XDP socket in the server's namespace, whether the kernel says that it is zero-copy:
        XDP_DU_F_ZEROCOPY of net/xdp/xsk_diag.c, where nothing of ours has a say."""
        text = self.run("server", "ss", "--xdp", "--extended", "--no-header").replace("\n\t", " ")
        return ["zc:1" in line for line in text.splitlines() if "server0" in line]

    def down(self) -> None:
        """Gives the devices back and removes the namespaces."""
        for namespace, inside, name in self._devices:
            run(["ip", "-n", namespace, "link", "set", inside, "netns", "1", "name", name])
            run(["ip", "netns", "del", namespace])
        self._devices.clear()
