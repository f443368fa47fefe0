"""A client, a balancer and nodes on one link, each in a namespace of its own, and servers that say which node they are."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .daemon import Daemon
from .namespace import run_inside
from .paths import BINARY, LIMIT, run

VIP, VIP6 = "10.77.0.100", "fd77::100"
PORT = 4433
INTERFACE = "eth0"
ADMIN = '[admin]\nlisten = "127.0.0.1:9180"\n'


def nodes(names: list[str], **more: str) -> str:
    """Nodes of a service; `more` has further lines by name."""
    tables = []
    for name in names:
        host = 20 + int(name[1:])
        tables.append(f'[[service.node]]\naddress = "10.77.0.{host}"\n{more.get(name, "")}')
    return "\n".join(tables) + "\n"


def services(names: list[str], check: str = "", **more: str) -> str:
    """A file with a service for TCP and one for UDP, at an IPv4 and an IPv6 address."""
    text = ADMIN
    for protocol in ("tcp", "udp"):
        text += f'[[service]]\nname = "{protocol}"\nprotocol = "{protocol}"\n'
        text += f'listen = ["{VIP}:{PORT}", "[{VIP6}]:{PORT}"]\n{check}{nodes(names, **more)}'
    return text


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Network:
    """The namespaces: `client`, `lb`, `n1` and so on, and a bridge between them."""

    def __init__(self, number: int, nodes: int = 3) -> None:
        self.prefix = f"bal-{os.getpid()}-{number}"
        self.hosts = {"client": 1, "lb": 2, **{f"n{index}": 20 + index for index in range(1, nodes + 1)}}
        self.nodes = [name for name in self.hosts if name.startswith("n")]
        self.made: list[str] = []
        self.servers: list[Server] = []
        self._add("switch")
        self.ip("switch", "link", "add", "br0", "type", "bridge")
        self.ip("switch", "link", "set", "br0", "up")
        for name, host in self.hosts.items():
            self._host(name, host)
        # What XDP sends out of a veth is only noticed by a peer with an XDP program (drivers/net/veth.c, veth_xdp_flush).
        command = ["ip", "netns", "exec", self.namespace("switch"), BINARY, "drop", "-i", "to-lb", "--action", "pass"]
        self.passer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.passer.stdout
        assert self.passer.stdout.readline().startswith("ready")
        for vip in (f"{VIP}/32", f"{VIP6}/128"):
            self.ip("lb", "address", "add", vip, "dev", INTERFACE, *(["nodad"] if ":" in vip else []))

    def _add(self, name: str) -> None:
        run(["ip", "netns", "add", self.namespace(name)])
        self.made.append(name)
        self.ip(name, "link", "set", "lo", "up")

    def _host(self, name: str, host: int) -> None:
        self._add(name)
        peer = f"to-{name}"
        self.ip("switch", "link", "add", peer, "type", "veth", "peer", "name", INTERFACE, "netns", self.namespace(name))
        self.ip("switch", "link", "set", peer, "master", "br0", "up")
        # Packets with half a checksum exist between kernels only.
        self.inside(name, "ethtool", "-K", INTERFACE, "tx", "off")
        self.ip(name, "address", "add", f"10.77.0.{host}/24", "dev", INTERFACE)
        self.ip(name, "address", "add", f"fd77::{host}/64", "dev", INTERFACE, "nodad")
        self.ip(name, "link", "set", INTERFACE, "up")
        if name.startswith("n"):
            # The service's address without an answer to who has it.
            for key, value in (("arp_ignore", 1), ("arp_announce", 2)):
                self.inside(name, "sysctl", "-qw", f"net.ipv4.conf.all.{key}={value}")
            self.ip(name, "address", "add", f"{VIP}/32", "dev", "lo")
            self.ip(name, "address", "add", f"{VIP6}/128", "dev", "lo", "nodad")

    def namespace(self, name: str) -> str:
        """The namespace of a host."""
        return f"{self.prefix}-{name}"

    def address(self, name: str) -> str:
        """Its IPv4 address."""
        return f"10.77.0.{self.hosts[name]}"

    def inside(self, name: str, *command: str | Path) -> str:
        """Runs a command in a host's namespace."""
        return run(["ip", "netns", "exec", self.namespace(name), *map(str, command)])

    def ip(self, name: str, *words: str) -> None:
        """`ip` in a host's namespace."""
        run(["ip", "-n", self.namespace(name), *words])

    def serve(self, name: str) -> "Server":
        """Servers of that node."""
        self.servers.append(Server(self, name))
        return self.servers[-1]

    def down(self) -> None:
        """Takes all of it away."""
        self.passer.kill()
        self.passer.communicate()
        for server in self.servers:
            server.stop()
        for name in self.made:
            run(["ip", "netns", "del", self.namespace(name)])


class Server:
    """Answers each message over TCP and UDP with the node's name, at every address."""

    def __init__(self, network: Network, name: str) -> None:
        self.name = name.encode()
        self.connections: list[socket.socket] = []

        def listen(kind: int, family: int, host: str) -> socket.socket:
            made = socket.socket(family, kind)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind((host, PORT))
            if kind == socket.SOCK_STREAM:
                made.listen(1024)
            return made

        def make() -> list[socket.socket]:
            families = ((socket.AF_INET, "0.0.0.0", VIP), (socket.AF_INET6, "::", VIP6))
            return [
                listen(kind, family, every if kind == socket.SOCK_STREAM else vip)
                for family, every, vip in families
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
            ]

        self.sockets = run_inside(network.namespace(name), make)
        for made in self.sockets:
            work = self._accept if made.type == socket.SOCK_STREAM else self._echo
            threading.Thread(target=work, args=(made,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            while connection.recv(65536):
                connection.sendall(self.name)
        except OSError:
            pass

    def _echo(self, made: socket.socket) -> None:
        while True:
            try:
                _, sender = made.recvfrom(65536)
                if sender is None:
                    return
                made.sendto(self.name, sender)
            except OSError:
                return

    def stop(self) -> None:
        """Ends it; connections are reset."""
        for made in [*self.sockets, *self.connections]:
            try:
                made.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            made.close()


class Client:
    """A connection or a flow of the client."""

    def __init__(self, network: Network, kind: int = socket.SOCK_STREAM, to: str = VIP) -> None:
        family = socket.AF_INET6 if ":" in to else socket.AF_INET

        def make() -> socket.socket:
            made = socket.socket(family, kind)
            made.settimeout(LIMIT)
            made.connect((to, PORT))
            return made

        self.socket = run_inside(network.namespace("client"), make)

    def ask(self) -> str:
        """The name of the node that answers."""
        self.socket.send(b"who")
        answer = self.socket.recv(100)
        assert answer, "the connection was closed"
        return answer.decode()

    def close(self) -> None:
        """Ends it."""
        self.socket.close()


class Balancer(Daemon):
    """A running `expressway balance`."""

    def __init__(self, network: Network, folder: Path, text: str, *words: str, prefix: tuple[str, ...] = ()) -> None:
        folder.mkdir(exist_ok=True)
        self.network = network
        self.config = folder / "balance.toml"
        self.config.write_text(text)
        self.log_file = folder / "balance.log"
        command = ["ip", "netns", "exec", network.namespace("lb"), *prefix, BINARY, "balance", "--config", self.config, *words]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        self.ready = self.process.stdout.readline()

    def wait_ready(self) -> None:
        """Until it balances, and knows the way to all nodes."""
        assert self.ready == f"ready interface={INTERFACE} mode=native\n", self.log()
        known = lambda: all(node["interface"] for service in (0, 1) for node in self.nodes(service).values())  # noqa: E731
        wait_until(known, "the nodes' MAC addresses are never known")

    def reload(self, text: str) -> None:
        """Changes the file and has it read."""
        times = self.log().count("reloaded") + 1
        self.config.write_text(text)
        self.signal(signal.SIGHUP)
        self.wait_log("reloaded", times)

    def admin(self, path: str, order: dict | None = None) -> str:
        """A page of the admin listener, or an order to it."""
        words = ["curl", "-s", "--max-time", str(LIMIT), f"http://127.0.0.1:9180{path}"]
        if order is not None:
            words += ["-H", "Content-Type: application/json", "-d", json.dumps(order)]
        return self.network.inside("lb", *words)

    def nodes(self, service: int = 0) -> dict[str, dict]:
        """What is known of the nodes of a service, by address."""
        services = json.loads(self.admin("/services"))["services"]
        return {node["address"]: node for node in services[service]["nodes"]}

    def left(self) -> list[str]:
        """Its program."""
        shown = self.network.inside("lb", "ip", "-details", "link", "show", "dev", INTERFACE)
        return ["an XDP program"] if "prog/xdp" in shown else []


class Gateways:
    """`expressway serve` on nodes, with connection IDs that balancers can route."""

    def __init__(self, network: Network, root: Path, certificates: Path, folder: Path) -> None:
        self.network, self.root, self.certificates, self.folder = network, root, certificates, folder
        self.running: list[subprocess.Popen[str]] = []

    def write(self, name: str, balancing: str = "") -> Path:
        """The file of a node; `balancing` has further keys of its connection IDs."""
        config = self.folder / f"{name}.toml"
        config.write_text(
            f'[server]\nlisten = ["{VIP}:{PORT}", "{self.network.address(name)}:{PORT}"]\nworkers = 2\n[io]\nmode = "udp"\n'
            f'[tls]\ncertificate = "{self.certificates}/cert.pem"\nprivate_key = "{self.certificates}/key.pem"\n'
            f'[quic.load_balancing]\nserver_id = "{socket.inet_aton(self.network.address(name)).hex()}"\n{balancing}'
            f'[[site]]\nhosts = ["edge.test"]\nroot = "{self.root}"\n')
        return config

    def start(self, names: list[str], balancing: str = "") -> list[str]:
        """Starts them; the servers of the network have left their ports."""
        for name in names:
            config = self.write(name, balancing)
            command = ["ip", "netns", "exec", self.network.namespace(name), BINARY, "serve", "--config", config]
            with (self.folder / f"{name}.log").open("wb") as log:
                self.running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
            out = self.running[-1].stdout
            assert out
            line = out.readline()
            assert line.startswith("ready"), (self.folder / f"{name}.log").read_text()
        return names

    def stop(self) -> None:
        """Ends them in order."""
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.communicate(timeout=LIMIT)
