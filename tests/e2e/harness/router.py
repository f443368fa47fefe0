"""A router between namespaces, and `expressway forward` in it."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from .daemon import Daemon
from .namespace import run_inside
from .paths import BINARY, LIMIT, run

# Receivers of redirected frames on a veth need NAPI, which GRO brings; senders finish their checksums themselves.
_FEATURES = ("gro", "on", "tx", "off")


class Network:
    """Hosts around a router: host N has 10.N.0.2 and 2001:db8:N::2, and the router 10.N.0.1 and ::1 on its `eN`."""

    def __init__(self, hosts: int = 2, mtu: int = 1500) -> None:
        self.names: list[str] = []
        self.router = self._add("router")
        self.hosts: dict[int, str] = {}
        for number in range(1, hosts + 1):
            self.add_host(number, mtu)
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            self.sysctl(key, "1")
        # A test counts its packets; what the kernel does by itself is in the way.
        self.sysctl("net.ipv4.conf.all.send_redirects", "0")

    def _add(self, role: str) -> str:
        name = f"fwd-{os.getpid()}-{role}"
        run(["ip", "netns", "add", name])
        self.names.append(name)
        run(["ip", "-n", name, "link", "set", "dev", "lo", "up"])
        return name

    def add_host(self, number: int, mtu: int = 1500) -> None:
        """A host with a link of its own to the router."""
        host = self.hosts[number] = self._add(f"host{number}")
        self.link(number, mtu)
        for family, via in (("-4", f"10.{number}.0.1"), ("-6", f"2001:db8:{number}::1")):
            self.ip(host, f"{family} route add default via {via}")

    def link(self, number: int, mtu: int = 1500) -> None:
        """Its link."""
        host = self.hosts[number]
        self.ip(self.router, f"link add name e{number} mtu {mtu} type veth peer name eth0 netns {host} mtu {mtu}")
        ends = ((self.router, f"e{number}", 1), (host, "eth0", 2))
        for namespace, device, last in ends:
            self.ip(namespace, f"address add 10.{number}.0.{last}/24 dev {device}")
            self.ip(namespace, f"address add 2001:db8:{number}::{last}/64 dev {device} nodad")
            self.ip(namespace, f"link set dev {device} up")
        # A veth that is down keeps to itself what its peer may send to it (veth_set_features in drivers/net/veth.c).
        for namespace, device, _ in ends:
            run(["ip", "netns", "exec", namespace, "ethtool", "-K", device, *_FEATURES])

    def ip(self, namespace: str, arguments: str) -> str:
        """`ip ARGUMENTS` there."""
        return run(["ip", "-n", namespace, *arguments.split()])

    def sysctl(self, key: str, value: str) -> None:
        """In the router."""
        run_inside(self.router, lambda: Path("/proc/sys", *key.split(".")).write_text(value))

    def ping(self, host: int, to: str, *words: str) -> str:
        """What ping said, which may be that nobody answers."""
        command = ["ip", "netns", "exec", self.hosts[host], "ping", "-n", "-c", "1", "-W", "5", *words, to]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False).stdout

    def mac(self, namespace: str, device: str) -> str:
        """A hardware address."""
        return json.loads(self.ip(namespace, f"-json link show dev {device}"))[0]["address"]

    def program(self, device: str) -> int | None:
        """The XDP program on an interface of the router."""
        (shown,) = json.loads(self.ip(self.router, f"-json -details link show dev {device}"))
        return shown.get("xdp", {}).get("prog", {}).get("id")

    def down(self) -> None:
        """Removes everything."""
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


class Forward(Daemon):
    """A running `expressway forward` in the router."""

    def __init__(self, network: Network, folder: Path, text: str, *words: str, prefix: tuple[str, ...] = ()) -> None:
        self.network = network
        folder.mkdir(exist_ok=True)
        self.file = folder / "forward.toml"
        self.file.write_text(text)
        self.log_file = folder / "forward.log"
        command = ["ip", "netns", "exec", network.router, *prefix, str(BINARY), "forward", "--config", str(self.file), "--json", *words]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.devices = text.split("]")[0].count('"') // 2

    def wait_ready(self) -> "Forward":
        """Waits until it forwards."""
        assert self.process.stdout
        for _ in range(self.devices):
            line = self.process.stdout.readline()
            assert '"ready"' in line, f"{line}\n{self.log()}"
        return self

    def statistics(self) -> dict:
        """What it has counted."""
        assert self.process.stdout
        self.signal(signal.SIGUSR1)
        return json.loads(self.process.stdout.readline())

    def forwarded(self) -> int:
        """Packets that it sent on itself."""
        return self.statistics()["total"].get("redirect", {}).get("forwarded", 0)

    def reload(self, text: str, times: int = 1) -> None:
        """Another file."""
        self.file.write_text(text)
        self.signal(signal.SIGHUP)
        self.wait_log("reloaded", times)

    def left(self) -> list[str]:
        """Its program."""
        shown = json.loads(self.network.ip(self.network.router, "-json link show"))
        return [f"an XDP program on {link['ifname']}" for link in shown if "xdp" in link]

    def output(self) -> str:
        """What it still printed at its end."""
        assert self.process.stdout
        with contextlib.closing(self.process.stdout) as stdout:
            return stdout.read()
