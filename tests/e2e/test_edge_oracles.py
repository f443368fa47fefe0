"""The programs at the edge of a network beside what the kernel has for the same: nftables for the filter, its routing for the
router, IPVS for the balancer. The same packets go through both."""

import contextlib
import ipaddress
import json
import random
import select
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import kernel
from harness.balance import PORT, VIP, Balancer, Client, Network as Balanced
from harness.daemon import Daemon, finish_all
from harness.lab import Lab
from harness.namespace import run_inside, udp_socket
from harness.paths import BINARY, run
from harness.router import Forward, Network

ETH_P_ALL = 3
# linux/if_packet.h: SOL_PACKET, PACKET_AUXDATA, TP_STATUS_VLAN_VALID; Python has no names for them.
SOL_PACKET, PACKET_AUXDATA, VLAN_VALID = 263, 8, 0x10
TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def transport(source: bytes, destination: bytes, protocol: int, body: bytes) -> bytes:
    """A TCP, UDP or ICMPv6 segment with its checksum in place of the zeros there."""
    at = {TCP: 16, UDP: 6, ICMPV6: 2}[protocol]
    pseudo = source + destination + struct.pack("!II", len(body), protocol)
    return body[:at] + struct.pack("!H", checksum(pseudo + body) or 0xFFFF) + body[at + 2 :]


def ipv4(source: str, destination: str, protocol: int, body: bytes, ident: int, ttl: int = 64, offset: int = 0) -> bytes:
    """An IPv4 packet in a frame, behind its Ethernet addresses. `offset` is the field with the flags."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), ident, offset, ttl, protocol, 0,
                       socket.inet_aton(source), socket.inet_aton(destination))  # fmt: skip
    return b"\x08\x00" + head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def ipv6(source: str, destination: str, protocol: int, body: bytes, label: int, limit: int = 64) -> bytes:
    """The same for IPv6."""
    ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination)
    return b"\x86\xdd" + struct.pack("!IHBB", 6 << 28 | label, len(body), protocol, limit) + ends + body


def raw_socket(namespace: str, device: str, protocol: int = 0) -> socket.socket:
    """A packet socket on a device; without a protocol it receives nothing."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        made.bind((device, protocol))
        return made

    return run_inside(namespace, make)


# nftables


class Rules:
    """A set of rules, for the filter and for nftables."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.guard, self.nft = "", []
        for number in range(self._random.randint(5, 40)):
            self._add(number)
        self.default = self._random.choice(["pass", "drop"])

    def _add(self, number: int) -> None:
        draw = self._random
        four = draw.random() < 0.6
        protocol = draw.choice(["tcp", "udp", "icmp" if four else "icmpv6", ""])
        lines, match = [], ["meta nfproto " + ("ipv4" if four else "ipv6")]
        family = "ip" if four else "ip6"
        # At least one address, so that the rule is of this family.
        addressed = draw.choice([("source",), ("destination",), ("source", "destination")])
        for field, name in (("source", "saddr"), ("destination", "daddr")):
            if field in addressed:
                prefixes = sorted({self.prefix(four) for _ in range(draw.randint(1, 3))})
                lines.append(f"{field} = {json.dumps(prefixes)}")
                match.append(f"{family} {name} {{ {', '.join(prefixes)} }}")
        if protocol:
            lines.append(f'protocol = "{protocol}"')
            match.append(f"meta l4proto {'ipv6-icmp' if protocol == 'icmpv6' else protocol}")
        if protocol in ("tcp", "udp"):
            for field, name in (("source_port", "sport"), ("destination_port", "dport")):
                if draw.random() < 0.5:
                    first = draw.randint(1000, 1030)
                    last = first + draw.choice([0, 5, 20])
                    lines.append(f'{field} = "{first}-{last}"')
                    match.append(f"{protocol} {name} {first}-{last}")
        if draw.random() < 0.3:
            first = draw.randint(28, 120)
            lines.append(f'length = "{first}-{first + 60}"')
            match.append(f"meta length {first}-{first + 60}")
        if protocol == "tcp" and draw.random() < 0.6:
            lines.append('tcp_flags = "syn,!ack"')
            match.append("tcp flags & (syn | ack) == syn")
        action = draw.choice(["pass", "drop"])
        self.guard += f'[[rule]]\nname = "{number}"\n' + "\n".join(lines) + f'\naction = "{action}"\n'
        # What is let through goes on to what notes it.
        self.nft.append(" ".join([*match, "accept" if action == "pass" else "drop"]))

    def address(self, four: bool) -> str:
        """Out of few, so that rules meet."""
        return f"198.51.100.{self._random.randrange(64)}" if four else f"2001:db8:5::{self._random.randrange(64):x}"

    def prefix(self, four: bool) -> str:
        """A network around one of them. All of a rule are of one length, so that none is within another."""
        length = 28 if four else 124
        return str(ipaddress.ip_network(f"{self.address(four)}/{length}", strict=False))

    def packet(self, number: int) -> bytes:
        """A packet that says its number as IPv4 identification or IPv6 flow label."""
        draw = self._random
        four = draw.random() < 0.6
        source, destination = self.address(four), self.address(four)
        while source == destination:
            destination = self.address(four)
        ends = [socket.inet_pton(socket.AF_INET if four else socket.AF_INET6, one) for one in (source, destination)]
        ports, payload = (draw.randint(995, 1055), draw.randint(995, 1055)), bytes(draw.randint(0, 80))
        kind = draw.choice([TCP, UDP, ICMP if four else ICMPV6])
        if kind == TCP:
            flags = draw.choice([0x02, 0x12, 0x10, 0x18, 0x11, 0x04])
            body = struct.pack("!HHIIBBHHH", *ports, 1, 0, 5 << 4, flags, 1000, 0, 0) + payload
        elif kind == UDP:
            body = struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload
        else:
            body = struct.pack("!BBHHH", 8 if four else 128, 0, 0, 1, number) + payload
            body = body[:2] + struct.pack("!H", checksum(body)) + body[4:] if four else body
        if kind != ICMP:
            body = transport(*ends, kind, body)
        if not four:
            if draw.random() < 0.15:
                # Destination options, all padding.
                body, kind = bytes([kind, 0, 1, 4, 0, 0, 0, 0]) + body, 60
            return ipv6(source, destination, kind, body, number)
        # A later fragment now and then: it has no ports.
        return ipv4(source, destination, kind, body, number, offset=draw.choice([0x4000] * 9 + [0x0010]))


class Guard(Daemon):
    """A filter in the server's namespace."""

    def __init__(self, lab: Lab, folder: Path, text: str) -> None:
        self.lab, self.log_file = lab, folder / "guard.log"
        file = folder / "guard.toml"
        file.write_text(text)
        with self.log_file.open("ab") as log:
            command = lab.inside("server", BINARY, "guard", "--config", file)
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        assert self.process.stdout.readline().startswith("ready"), self.log()

    def left(self) -> list[str]:
        """Its program."""
        return self.lab.programs("server")


# What comes past the filters is noted by its number, and goes no further.
NOTES = """
table inet notes {
  set four { typeof ip id; size 65536; flags dynamic; }
  set six { typeof ip6 flowlabel; size 65536; flags dynamic; }
  chain noted { type filter hook prerouting priority 100;
    iifname "server0" ip id 1-65535 add @four { ip id } drop
    iifname "server0" ip6 flowlabel 1-65535 add @six { ip6 flowlabel } drop
  }
}
"""


def noted(lab: Lab, end: tuple[str, int]) -> set[tuple[str, int]]:
    """The numbers of what came past, once the last has: that one every filter lets through."""
    for _ in range(600):
        found = set()
        for name in ("four", "six"):
            listed = json.loads(lab.run("server", "nft", "-j", "list", "set", "inet", "notes", name))
            elements = listed["nftables"][-1]["set"].get("elem", [])
            found |= {(name, one["elem"]["val"] if isinstance(one, dict) else one) for one in elements}
        if end in found:
            return found - {end}
        time.sleep(0.1)
    raise AssertionError(f"the last packet never came: {sorted(found)[-10:]}")


@pytest.mark.parametrize("seed", range(3))
def test_the_filters_verdicts_are_those_of_nftables(make_lab, tmp_path: Path, seed: int) -> None:
    lab = make_lab()
    if subprocess.run(lab.inside("server", "nft", "-f", "-"), input=NOTES, text=True, capture_output=True, check=False).returncode:
        kernel.lacks("this kernel has no nftables with sets, or nft is missing")
    rules = Rules(seed)
    (link,) = json.loads(lab.run("server", "ip", "-json", "link", "show", "server0"))
    ethernet = bytes.fromhex(link["address"].replace(":", "")) + b"\x02\0\0\0\0\x02"
    packets = [rules.packet(number) for number in range(1, 401)]
    # In 203.0.113.0/24, which no rule is about but the first.
    last = ipv4("203.0.113.1", "203.0.113.2", UDP, struct.pack("!HHHH", 1, 1, 8, 0), 60000)
    sender = raw_socket(lab.client_namespace, "client0")

    def through() -> set[tuple[str, int]]:
        for name in ("four", "six"):
            lab.run("server", "nft", "flush", "set", "inet", "notes", name)
        for number, packet in enumerate([*packets, last]):
            sender.send(ethernet + packet)
            # The ring of a veth has 256 places.
            if number % 50 == 49:
                time.sleep(0.01)
        return noted(lab, ("four", 60000))

    before = "ip saddr 203.0.113.1 accept"
    policy = "accept" if rules.default == "pass" else "drop"
    # Later fragments match no port, and pass where no rule says otherwise.
    fragments = "ip frag-off & 0x1fff != 0 accept"
    chain = "\n".join([before, *rules.nft, fragments])
    table = f"table inet rules {{\n chain first {{\n type filter hook prerouting priority -400; policy {policy};\n{chain}\n }}\n}}\n"
    nft = lab.inside("server", "nft", "-f", "-")
    everything = through()
    subprocess.run(nft, input=table, text=True, check=True)
    by_nftables = through()
    lab.run("server", "nft", "delete", "table", "inet", "rules")
    text = f'interfaces = ["server0"]\ndrop_malformed = false\ndefault = "{rules.default}"\nallow = ["203.0.113.1"]\n{rules.guard}'
    guard = Guard(lab, tmp_path, text)
    by_guard = through()
    guard.finish()
    assert len(everything) == len(packets), "the kernel takes each of them"
    assert 0 < len(by_nftables) < len(packets), "some pass, some do not"
    assert by_guard == by_nftables, rules.guard


# The kernel's routing


@pytest.fixture
def make_forward(tmp_path: Path) -> Iterator[Callable[..., tuple[Network, Callable[..., Forward]]]]:
    """Makes routers with two hosts, and what starts the program in them."""
    networks: list[Network] = []
    running: list[Forward] = []

    def make() -> tuple[Network, Callable[..., Forward]]:
        network = Network()
        networks.append(network)

        def start(text: str) -> Forward:
            running.append(Forward(network, tmp_path / f"forward-{len(running)}", text).wait_ready())
            return running[-1]

        return network, start

    yield make
    finish_all(list(running))
    for network in networks:
        network.down()


def with_tag(receiving: socket.socket) -> tuple[bytes, int]:
    """The next frame, with the tag that the kernel has taken out of it, and whose it is."""
    frame, control, _, (_, _, kind, *_) = receiving.recvmsg(65536, socket.CMSG_SPACE(20))
    for level, which, data in control:
        if (level, which) == (SOL_PACKET, PACKET_AUXDATA):
            status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", data[:20])
            if status & VLAN_VALID:
                frame = frame[:12] + struct.pack("!HH", tpid or 0x8100, tci) + frame[12:]
    return frame, kind


def exchange(network: Network, sent: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Frames of host 1 on its wire: what arrives at host 2 of them, and the ICMP errors that come back."""
    ahead = raw_socket(network.hosts[2], "eth0", ETH_P_ALL)
    back = raw_socket(network.hosts[1], "eth0", ETH_P_ALL)
    sender = raw_socket(network.hosts[1], "eth0")
    # Otherwise host 2 answers too.
    taken = udp_socket(network.hosts[2], socket.AF_INET6)
    taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    taken.bind(("::", 5000))
    arrived, answered = [], []
    with ahead, back, sender, taken:
        for frame in sent:
            sender.send(frame)
        while ready := select.select([ahead, back], [], [], 2)[0]:
            for one in ready:
                frame, kind = with_tag(one)
                # To us, by a mark in the payload.
                if kind == socket.PACKET_HOST and b"oracle-" in frame:
                    (arrived if one is ahead else answered).append(frame)

    def mark(frame: bytes) -> bytes:
        return frame[frame.index(b"oracle-") :][:10]

    return sorted(arrived, key=mark), sorted((bare(frame) for frame in answered), key=mark)


def bare(frame: bytes) -> bytes:
    """An answer without what is the kernel's choice: identification, flow label, and the checksum over the first."""
    if frame[12:14] == b"\x08\x00":
        return frame[:18] + frame[20:24] + frame[26:]
    return frame[:14] + frame[18:]


def probes(network: Network, device: str, tag: bytes = b"") -> list[bytes]:
    """Packets from host 1 to host 2 of all sizes and hop limits, and to where no route leads."""
    macs = "".join((network.mac(network.router, device), network.mac(network.hosts[1], "eth0"))).replace(":", "")
    link, packets = bytes.fromhex(macs) + tag, []

    def udp(size: int) -> bytes:
        payload = b"oracle-%03d" % len(packets) + bytes(size)
        return struct.pack("!HHHH", 4000 + len(packets), 5000, 8 + len(payload), 0) + payload

    for size in (0, 1, 100, 1200, 1240, 1300, 1400):
        for ttl in (64, 2, 1):
            for offset in (0, 0x4000):
                body = transport(socket.inet_aton("10.1.0.2"), socket.inet_aton("10.2.0.2"), UDP, udp(size))
                packets.append(ipv4("10.1.0.2", "10.2.0.2", UDP, body, len(packets), ttl, offset))
            ends = [socket.inet_pton(socket.AF_INET6, f"2001:db8:{number}::2") for number in (1, 2)]
            body = transport(*ends, UDP, udp(size))
            packets.append(ipv6("2001:db8:1::2", "2001:db8:2::2", UDP, body, len(packets), ttl))
    packets.append(ipv4("10.1.0.2", "203.0.113.9", UDP, udp(1), 900))
    packets.append(ipv4("10.1.0.2", "192.0.2.9", UDP, udp(1), 901))
    return [link + packet for packet in packets]


def prepared(network: Network) -> None:
    """An MTU to exceed, routes that refuse, and a kernel that answers each packet."""
    network.ip(network.router, "link set dev e2 mtu 1280")
    network.ip(network.hosts[2], "link set dev eth0 mtu 1280")
    network.ip(network.router, "route add unreachable 203.0.113.0/24")
    for key, value in (("net.ipv4.icmp_ratemask", "0"), ("net.ipv4.icmp_msgs_per_sec", "100000"),
                       ("net.ipv4.icmp_msgs_burst", "10000"), ("net.ipv6.icmp.ratelimit", "0")):  # fmt: skip
        # Two of them are of all namespaces together before Linux 6.13, and large enough.
        with contextlib.suppress(FileNotFoundError):
            network.sysctl(key, value)
    for number in (1, 2):
        host = network.hosts[number]
        for family in ("", "6"):
            to = f"10.{number}.0.2" if not family else f"2001:db8:{number}::2"
            lladdr = network.mac(host, "eth0")
            network.ip(network.router, f"neighbour replace {to} lladdr {lladdr} dev e{number} nud permanent")


def test_what_arrives_and_what_is_answered_are_the_kernels(make_forward) -> None:
    network, start = make_forward()
    prepared(network)
    sent = probes(network, "e1")
    arrived, answered = exchange(network, sent)
    forward = start('interfaces = ["e1", "e2"]\n')
    also_arrived, also_answered = exchange(network, sent)
    assert len(arrived) > 20 and len(answered) > 20, (len(arrived), len(answered))
    assert also_arrived == arrived
    assert also_answered == answered
    counted = forward.statistics()["interfaces"][0]["packets"]
    assert counted["redirect"]["forwarded"] > 20, counted
    assert {"ttl", "too_large", "refused", "local_or_no_route"} <= counted["pass"].keys(), counted


@pytest.mark.parametrize("way", ["in", "out"])
def test_tags_are_put_on_and_taken_off_as_the_kernel_does(make_forward, way: str) -> None:
    network, start = make_forward()
    number = 1 if way == "in" else 2
    host, device = network.hosts[number], f"e{number}"
    for namespace, below, last in ((network.router, device, 1), (host, "eth0", 2)):
        made = subprocess.run(["ip", "-n", namespace, "link", "add", "link", below, "name", f"{below}.7", "type", "vlan",
                               "id", "7"], capture_output=True, text=True, check=False)  # fmt: skip
        if made.returncode != 0:
            kernel.lacks(f"no VLAN interfaces: {made.stderr.strip()}")
        for address in (f"10.{number}.0.{last}/24", f"2001:db8:{number}::{last}/64"):
            network.ip(namespace, f"address del {address} dev {below}")
            network.ip(namespace, f"address add {address} dev {below}.7" + (" nodad" if ":" in address else ""))
        network.ip(namespace, f"link set dev {below}.7 up")
        run(["ip", "netns", "exec", namespace, "ethtool", "-K", below, "rxvlan", "off", "txvlan", "off"])
    for via in (f"-4 route replace default via 10.{number}.0.1", f"-6 route replace default via 2001:db8:{number}::1"):
        network.ip(host, via)
    network.ping(1, "10.2.0.2")
    network.ping(1, "2001:db8:2::2")
    tag = b"\x81\x00\x00\x07" if way == "in" else b""
    sent = [frame for frame in probes(network, "e1", tag) if len(frame) < 1300]
    arrived, _ = exchange(network, sent)
    forward = start(f'interfaces = ["{"e1.7" if way == "in" else "e1"}", "{"e2" if way == "in" else "e2.7"}"]\n')
    also_arrived, _ = exchange(network, sent)
    assert len(arrived) > 15 and all((frame[12:14] == b"\x81\x00") == (way == "out") for frame in arrived)
    assert also_arrived == arrived
    assert forward.forwarded() > 15


# IPVS

# Connections; each of three nodes gets a third, within five standard deviations of a fair draw.
CONNECTIONS = 180
SPREAD = 5 * (CONNECTIONS * 1 / 3 * 2 / 3) ** 0.5


def spread(network: Balanced) -> dict[str, int]:
    """Connections by node; each keeps its node as long as it lasts."""
    found = dict.fromkeys(network.nodes, 0)
    for _ in range(CONNECTIONS):
        client = Client(network)
        node = client.ask()
        assert client.ask() == node
        client.close()
        found[node] += 1
    return found


def test_the_service_is_spread_as_ipvs_spreads_it(tmp_path: Path) -> None:
    if not shutil.which("ipvsadm", path="/usr/sbin:/sbin:/usr/bin"):
        kernel.lacks("ipvsadm is missing")
    network = Balanced(0)
    try:
        for name in network.nodes:
            network.serve(name)
        service = ["-t", f"{VIP}:{PORT}"]
        command = ["ip", "netns", "exec", network.namespace("lb"), "ipvsadm", "-A", *service, "-s", "mh", "-b", "mh-port"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            kernel.lacks(f"no IPVS: {made.stderr.strip()}")
        for name in network.nodes:
            network.inside("lb", "ipvsadm", "-a", *service, "-r", network.address(name), "-g")
        network.inside("lb", "ipvsadm", "-e", *service, "-r", network.address("n1"), "-g", "-w", "1")
        by_ipvs = spread(network)
        network.inside("lb", "ipvsadm", "-C")
        nodes = "".join(f'[[service.node]]\naddress = "{network.address(name)}"\n' for name in network.nodes)
        text = f'[[service]]\nname = "tcp"\nprotocol = "tcp"\nlisten = ["{VIP}:{PORT}"]\n{nodes}'
        balancer = Balancer(network, tmp_path / "balancer", text)
        assert balancer.ready.startswith("ready"), balancer.log()
        by_balance = spread(network)
        balancer.finish()
    finally:
        network.down()
    for found in (by_ipvs, by_balance):
        assert sum(found.values()) == CONNECTIONS
        assert all(abs(count - CONNECTIONS / 3) <= SPREAD for count in found.values()), (by_ipvs, by_balance)
