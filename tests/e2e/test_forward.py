"""`expressway forward` between namespaces: the kernel's own forwarding is what it is compared with."""

import hashlib
import json
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import kernel
from harness.daemon import finish_all
from harness.namespace import give_room, run_inside, udp_socket
from harness.paths import BINARY, LIMIT, run
from harness.router import Forward, Network

TWO = 'interfaces = ["e1", "e2"]\n'
ETH_P_ALL = 3
FAMILIES = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])


@pytest.fixture
def make_network() -> Iterator[Callable[..., Network]]:
    """Makes routers with hosts around."""
    made: list[Network] = []

    def make(**options: int) -> Network:
        made.append(Network(**options))
        return made[-1]

    yield make
    for network in made:
        network.down()


@pytest.fixture
def make_forward(tmp_path: Path, make_network) -> Iterator[Callable[..., Forward]]:
    """Starts it; at the end each has to be alive, unless the test has ended it, and to stop cleanly."""
    running: list[Forward] = []

    def make(network: Network, text: str = TWO, *words: str) -> Forward:
        running.append(Forward(network, tmp_path / f"forward-{len(running)}", text, *words).wait_ready())
        return running[-1]

    yield make
    finish_all(running)


def host(number: int, family: int = socket.AF_INET) -> str:
    """Its address."""
    return f"10.{number}.0.2" if family == socket.AF_INET else f"2001:db8:{number}::2"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something to be so."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def receiver(network: Network, number: int, family: int, port: int = 5000, at: str = "") -> socket.socket:
    """A UDP socket on a host."""
    made = udp_socket(network.hosts[number], family)
    give_room(made)
    made.bind((at or host(number, family), port))
    return made


def drain(bound: socket.socket, count: int) -> list[bytes]:
    """That many datagrams, or those that come."""
    found: list[bytes] = []
    while len(found) < count and select.select([bound], [], [], 3)[0]:
        found.append(bound.recv(65536))
    return found


def stream(network: Network, meanwhile: Callable[[], None], count: int = 6000) -> list[bytes]:
    """What host 2 gets of datagrams that host 1 sends, evenly, while something happens."""
    bound = receiver(network, 2, socket.AF_INET)
    sender = udp_socket(network.hosts[1], socket.AF_INET)
    # Neighbours are known before it counts.
    network.ping(1, host(2))
    worker = threading.Thread(target=meanwhile)
    worker.start()
    for number in range(count):
        sender.sendto(number.to_bytes(4, "big") + bytes(200), (host(2), 5000))
        if number % 20 == 0:
            time.sleep(0.005)
    worker.join()
    return drain(bound, count)


@FAMILIES
def test_tcp_passes_both_ways(make_network, make_forward, family) -> None:
    network = make_network()
    forward = make_forward(network)
    content = bytes(range(256)) * 8192
    for server, client in ((2, 1), (1, 2)):
        listener = run_inside(network.hosts[server], lambda server=server: socket.create_server(
            (host(server, family), 6000), family=family))

        def send(listener=listener) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(content)

        worker = threading.Thread(target=send)
        worker.start()
        connected = run_inside(network.hosts[client], lambda server=server: socket.create_connection(
            (host(server, family), 6000), timeout=LIMIT))
        with connected, listener:
            digest, length = hashlib.sha256(), 0
            while part := connected.recv(1 << 16):
                digest.update(part)
                length += len(part)
        worker.join()
        assert (length, digest.digest()) == (len(content), hashlib.sha256(content).digest())
    assert forward.forwarded() > 2 * len(content) / 1500, "by the program, not by the kernel"


def frames_at(network: Network, sent: list[bytes]) -> list[bytes]:
    """What arrives at host 2 of frames that host 1 puts on its wire."""
    def opened(protocol: int) -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        made.bind(("eth0", protocol))
        return made

    sniffer = run_inside(network.hosts[2], lambda: opened(ETH_P_ALL))
    sender = run_inside(network.hosts[1], lambda: opened(0))
    found = []
    with sniffer, sender:
        for frame in sent:
            sender.send(frame)
        while select.select([sniffer], [], [], 2)[0]:
            frame, (_, _, kind, *_) = sniffer.recvfrom(65536)
            # To us, by a mark in the payload.
            if kind == socket.PACKET_HOST and b"expressway-probe" in frame:
                found.append(frame)
    return sorted(found, key=lambda frame: frame[frame.index(b"expressway-probe"):])


def probes(network: Network) -> list[bytes]:
    """Packets of all sorts, as host 1 would send them to host 2."""
    def checksum(header: bytes) -> bytes:
        total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        return (~total & 0xFFFF).to_bytes(2, "big")

    def ipv4(body: bytes, ttl: int = 64, flags: int = 0x4000, tos: int = 0, protocol: int = 17, options: bytes = b"") -> bytes:
        length = 20 + len(options)
        start = bytes([0x40 | length // 4, tos]) + (length + len(body)).to_bytes(2, "big") + b"\x12\x34"
        start += flags.to_bytes(2, "big") + bytes([ttl, protocol])
        ends = socket.inet_aton(host(1)) + socket.inet_aton(host(2)) + options
        return b"\x08\x00" + start + checksum(start + b"\0\0" + ends) + ends + body

    def ipv6(body: bytes, limit: int = 64, kind: int = 17, label: int = 0) -> bytes:
        ends = b"".join(socket.inet_pton(socket.AF_INET6, host(number, socket.AF_INET6)) for number in (1, 2))
        start = (6 << 28 | label).to_bytes(4, "big") + len(body).to_bytes(2, "big") + bytes([kind, limit])
        return b"\x86\xdd" + start + ends + body

    def udp(number: int) -> bytes:
        payload = b"expressway-probe %03d" % number
        return (4000).to_bytes(2, "big") + (5000).to_bytes(2, "big") + (8 + len(payload)).to_bytes(2, "big") + b"\0\0" + payload

    packets = [
        ipv4(udp(1)), ipv4(udp(2), ttl=2), ipv4(udp(3), ttl=255), ipv4(udp(4), tos=0xB9), ipv4(udp(5), flags=0),
        ipv4(udp(6), flags=0x2000), ipv4(udp(7), flags=0x2008), ipv4(udp(8), flags=9), ipv4(udp(9), protocol=253),
        ipv4(udp(10), options=b"\x01\x01\x01\x00"), ipv6(udp(11)), ipv6(udp(12), limit=2), ipv6(udp(13), label=0xABCDE),
        ipv6(bytes([17, 0, 0, 1, 0, 0, 0, 7]) + udp(14), kind=44), ipv6(bytes([17, 0, 1, 4, 0, 0, 0, 0]) + udp(15), kind=60),
        ipv6(bytes([17, 0, 1, 4, 0, 0, 0, 0]) + udp(16), kind=0), ipv6(udp(17), kind=253),
    ]
    # That no router sends on: last hop, wrong checksum.
    packets += [ipv4(udp(30), ttl=1), ipv6(udp(31), limit=1), ipv4(udp(32)).replace(b"\x12\x34", b"\x12\x35", 1)]
    macs = "".join((network.mac(network.router, "e1"), network.mac(network.hosts[1], "eth0"))).replace(":", "")
    return [bytes.fromhex(macs) + packet for packet in packets]


def test_packets_arrive_as_the_kernel_would_have_sent_them(make_network, make_forward) -> None:
    network = make_network()
    network.ping(1, host(2))
    network.ping(1, host(2, socket.AF_INET6))
    sent = probes(network)
    by_kernel = frames_at(network, sent)
    forward = make_forward(network)
    by_program = frames_at(network, sent)
    assert len(by_kernel) == 17, "the kernel forwards all but what no router does"
    assert by_program == by_kernel
    counted = forward.statistics()["interfaces"][0]["packets"]
    assert counted["redirect"]["forwarded"] >= 13, counted
    assert counted["pass"]["ttl"] == 2 and counted["pass"]["malformed"] == 1, counted
    assert counted["pass"]["ipv4_options"] == 1 and counted["pass"]["ipv6_extension"] == 2, counted


def test_the_kernel_answers_what_is_not_forwarded(make_network, make_forward) -> None:
    network = make_network()
    network.ip(network.router, "link set dev e2 mtu 1280")
    network.ip(network.hosts[2], "link set dev eth0 mtu 1280")
    network.ip(network.router, "route add unreachable 203.0.113.0/24")
    forward = make_forward(network)
    assert "1 received" in network.ping(1, host(2))
    assert "1 received" in network.ping(1, host(2, socket.AF_INET6))
    assert "1 received" in network.ping(1, "10.2.0.1"), "the router itself"
    assert "Time to live exceeded" in network.ping(1, host(2), "-t", "1")
    assert "Hop limit" in network.ping(1, host(2, socket.AF_INET6), "-t", "1")
    assert "mtu = 1280" in network.ping(1, host(2), "-M", "do", "-s", "1400")
    assert "Unreachable" in network.ping(1, "203.0.113.1")
    counted = forward.statistics()["interfaces"][0]["packets"]["pass"]
    assert {"ttl", "too_large", "refused", "local_or_no_route"} <= counted.keys(), counted
    # In fragments.
    assert "1 received" in network.ping(1, host(2), "-M", "dont", "-s", "1400")


def test_a_neighbour_that_is_unknown_is_resolved_by_the_kernel(make_network, make_forward) -> None:
    network = make_network()
    forward = make_forward(network)
    network.ip(network.router, "neighbour flush all")
    assert "1 received" in network.ping(1, host(2))
    assert forward.statistics()["interfaces"][0]["packets"]["pass"]["neighbour"] >= 1


def test_neighbours_that_only_forwarded_packets_use_are_confirmed(make_network, make_forward) -> None:
    network = make_network()
    network.ping(1, host(2))
    mac = network.mac(network.hosts[2], "eth0")
    make_forward(network)
    network.ip(network.router, f"neighbour replace {host(2)} lladdr {mac} dev e2 nud stale")

    def state() -> str:
        return json.loads(network.ip(network.router, f"-json neighbour show {host(2)}"))[0]["state"][0]

    wait_until(lambda: state() == "REACHABLE", "the kernel was never asked to confirm it")


def test_routes_change_under_load_without_loss(make_network, make_forward) -> None:
    network = make_network(hosts=3)
    # Host 2 is reached by its own link or through host 3.
    run_inside(network.hosts[3], lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
    network.ip(network.hosts[2], "address add 192.0.2.2/32 dev lo")
    forward = make_forward(network, 'interfaces = ["e1", "e2", "e3"]\n')
    network.ping(1, host(2))
    network.ping(1, host(3))

    def change() -> None:
        for _ in range(20):
            network.ip(network.router, "route replace 10.2.0.2/32 dev e2 src 10.2.0.1")
            time.sleep(0.02)
            network.ip(network.router, "route del 10.2.0.2/32")
            time.sleep(0.02)

    assert len(stream(network, change)) == 6000
    assert forward.forwarded() >= 6000


def test_a_reload_loses_nothing_and_a_bad_one_changes_nothing(make_network, make_forward) -> None:
    network = make_network(hosts=3)
    forward = make_forward(network)
    forward.expect("not reloaded")

    def change() -> None:
        for number in range(1, 6):
            forward.reload('interfaces = ["e1", "e2", "e3"]\n' if number % 2 else TWO, number)
        forward.reload('interfaces = ["e1", "nowhere"]\n', 6)
        forward.reload('interfaces = 7\n', 7)

    assert len(stream(network, change)) == 6000
    assert forward.forwarded() >= 6000
    assert "nowhere: no such interface" in forward.log()
    assert "forward.toml:1: interfaces:" in forward.log()
    assert [one["interface"] for one in forward.statistics()["interfaces"]] == ["e1", "e2", "e3"]


def test_one_arm(make_network, make_forward) -> None:
    network = make_network(hosts=1)
    for namespace, last in ((network.router, 1), (network.hosts[1], 2)):
        device = "e1" if last == 1 else "eth0"
        network.ip(namespace, f"address add 192.0.2.{last}/24 dev {device}")
    network.ip(network.router, "route add 198.51.100.0/24 via 192.0.2.2")
    network.ip(network.hosts[1], "address add 198.51.100.7/32 dev lo")
    network.ip(network.hosts[1], "route add 198.51.100.9/32 via 10.1.0.1")
    network.ip(network.router, "route add 198.51.100.9/32 via 192.0.2.2")
    network.ip(network.router, f"neighbour replace 192.0.2.2 lladdr {network.mac(network.hosts[1], 'eth0')} dev e1")
    forward = make_forward(network, 'interfaces = ["e1"]\n')
    sender = udp_socket(network.hosts[1], socket.AF_INET)
    for _ in range(100):
        sender.sendto(bytes(64), ("198.51.100.9", 5000))
    wait_until(lambda: forward.forwarded() >= 100, f"not sent back: {forward.statistics()}")


def test_killed_without_a_pin_the_kernel_goes_on(make_network, make_forward) -> None:
    network = make_network()
    forward = make_forward(network)
    assert len(stream(network, forward.kill)) == 6000
    wait_until(lambda: network.program("e1") is None, "the program outlived its process")
    again = make_forward(network)
    assert len(stream(network, lambda: None, 100)) == 100
    assert again.forwarded() >= 100


@pytest.fixture
def bpffs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A BPF file system of the test's own."""
    folder = tmp_path / "bpffs"
    folder.mkdir()
    run(["mount", "-t", "bpf", "bpf", folder])
    monkeypatch.setenv("LIBXDP_BPFFS", str(folder))
    yield folder
    run(["umount", folder])


def test_killed_with_a_pin_forwarding_goes_on_and_the_next_start_takes_over(
    bpffs, make_network, make_forward
) -> None:
    network = make_network()
    text = "pin = true\n" + TWO
    forward = make_forward(network, text)
    before = network.program("e1")
    successors: list[Forward] = []

    def die_and_return() -> None:
        forward.kill()
        time.sleep(0.2)
        assert network.program("e1") == before, "the program went with its process"
        successors.append(make_forward(network, text))

    assert len(stream(network, die_and_return)) == 6000
    assert network.program("e1") not in (None, before), "another took its place"
    assert successors[0].forwarded() > 0
    successors[0].stop()
    assert network.program("e1") is None
    assert not list((bpffs / "expressway").iterdir()), "a name that stayed"


def test_pins_of_interfaces_that_are_not_configured_any_more_are_taken_off(
    bpffs, make_network, make_forward
) -> None:
    network = make_network(hosts=3)
    make_forward(network, 'pin = true\ninterfaces = ["e1", "e2", "e3"]\n').kill()
    assert all(network.program(device) for device in ("e1", "e2", "e3"))
    second = make_forward(network, 'pin = true\ninterfaces = ["e1", "e2"]\n')
    wait_until(lambda: network.program("e3") is None, "still forwards by what an earlier process knew")
    assert len(list((bpffs / "expressway").iterdir())) == 2
    second.kill()
    # Nor does it take `pin`, and another that lives keeps its own.
    third = make_forward(network, 'interfaces = ["e1"]\n')
    wait_until(lambda: network.program("e2") is None, "still forwards by what an earlier process knew")
    third.stop()
    fourth = make_forward(network, 'pin = true\ninterfaces = ["e3"]\n')
    make_forward(network, 'interfaces = ["e1"]\n').kill()
    assert network.program("e3")
    wait_until(lambda: network.program("e1") is None, "the program outlived its process")
    fourth.stop()
    assert not list((bpffs / "expressway").iterdir())


def test_what_a_device_refuses_is_counted(make_network, make_forward) -> None:
    network = make_network()
    forward = make_forward(network)
    if forward.statistics()["interfaces"][0]["egress"] is None:
        kernel.lacks("this kernel lets nobody trace what devices do with redirected frames")
    network.ping(1, host(2))
    # A veth takes no frame that its peer has no room for (veth_xdp_xmit in drivers/net/veth.c).
    network.ip(network.hosts[2], "link set dev eth0 mtu 1280")
    sender = udp_socket(network.hosts[1], socket.AF_INET)

    def refused() -> int:
        sender.sendto(bytes(1400), (host(2), 5000))
        (e2,) = [one for one in forward.statistics()["interfaces"] if one["interface"] == "e2"]
        return e2["egress"]["refused"]

    wait_until(lambda: refused() > 2, "no refusal is counted")


def test_interfaces_go_and_come(make_network, make_forward) -> None:
    network = make_network()
    forward = make_forward(network)
    network.ip(network.router, "link set dev e2 down")
    network.ping(1, host(2), "-W", "1")
    network.ip(network.router, "link set dev e2 up")
    network.ip(network.router, "address replace 2001:db8:2::1/64 dev e2 nodad")
    assert "1 received" in network.ping(1, host(2))
    network.ip(network.router, "link delete dev e2")
    wait_until(lambda: forward.statistics()["interfaces"][1]["problem"] is not None, "not noticed")
    network.link(2)
    network.ip(network.hosts[2], "route replace default via 10.2.0.1")
    wait_until(lambda: network.program("e2") is not None, "not put back")
    # Until the program knows the interface again, the kernel forwards.
    before = forward.forwarded()
    wait_until(lambda: network.ping(1, host(2)) and forward.forwarded() > before, "not forwarded again")
    before = forward.forwarded()
    assert len(stream(network, lambda: None, 100)) == 100
    assert forward.forwarded() >= before + 100


def test_other_interfaces_are_left_alone(make_network, make_forward) -> None:
    network = make_network(hosts=3)
    forward = make_forward(network)
    for _ in range(2):
        assert "1 received" in network.ping(1, host(3)), "by the kernel"
    counted = forward.statistics()["interfaces"][0]["packets"]
    assert counted["pass"]["other_egress"] >= 1, counted
    assert network.program("e3") is None


def test_a_program_that_is_there_already_is_refused(make_network, make_forward, tmp_path) -> None:
    network = make_network()
    first = make_forward(network)
    before = network.program("e1")
    second = Forward(network, tmp_path / "second", TWO)
    assert second.wait() == 1
    assert "e1: already has another XDP program expressway_fwd" in second.log(), second.log()
    assert network.program("e1") == before
    assert "1 received" in network.ping(1, host(2))
    assert first.process.poll() is None


@pytest.mark.parametrize(("text", "code", "said"), [
    ('interfaces = ["nowhere"]\n', 1, "nowhere: no such interface"),
    ('interfaces = ["lo"]\n', 1, "lo: "),
    ('interfaces = ["port"]\n', 1, "port: is a port of bridge"),
    ('interfaces = ["bridge"]\n', 1, "bridge: handles frames"),
    ('mode = "generic"\ninterfaces = ["e1"]\n[[replicate]]\nlisten = "10.1.0.1:5000"\nto = [{address = "10.2.0.2:1"}]\n', 2,
     "cannot copy feeds"),
    ('interface = ["e1"]\n', 2, "forward.toml:1: interface"),
    ('interfaces = ["e1"]\n[[replicate]]\nlisten = "239.1.1.1:5000"\n', 2, "forward.toml:2"),
], ids=["absent", "loopback", "bridge-port", "bridge", "generic-feed", "key", "receivers"])
def test_what_cannot_be_is_an_error(make_network, tmp_path, text, code, said) -> None:
    network = make_network(hosts=1)
    network.ip(network.router, "link add name bridge type bridge")
    network.ip(network.router, "link add name port type veth peer name port-peer")
    network.ip(network.router, "link set dev port master bridge")
    forward = Forward(network, tmp_path / "refused", text)
    assert forward.wait() == code
    assert said in forward.log(), forward.log()
    assert not forward.left()


def test_a_bond_is_refused(make_network, tmp_path) -> None:
    network = make_network(hosts=1)
    try:
        network.ip(network.router, "link add name bond type bond")
    except AssertionError as error:
        if "Unknown device type" not in str(error):
            raise
        kernel.lacks("this kernel has no bonding (CONFIG_BONDING)")
    forward = Forward(network, tmp_path / "refused", 'interfaces = ["bond"]\n')
    assert forward.wait() == 1
    assert "bond: is a bond" in forward.log(), forward.log()


def test_a_file_is_checked_without_privilege(tmp_path) -> None:
    file = tmp_path / "forward.toml"
    file.write_text('interfaces = ["eth0", "eth1"]\n')
    command = [BINARY, "forward", "--config", file, "--check"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{file}: ok\n"


@FAMILIES
def test_a_feed_reaches_its_receivers(make_network, make_forward, family) -> None:
    network = make_network(hosts=3)
    wide = family == socket.AF_INET
    group = "239.1.1.1" if wide else "ff0e::1:1"
    prefix = 24 if wide else 64
    second = "10.2.0.3" if wide else "2001:db8:2::3"
    network.ip(network.hosts[2], f"address add {second}/{prefix} dev eth0 {'' if wide else 'nodad'}")
    # A feed of unicast datagrams, to the router itself.
    own = "10.1.0.1" if wide else "2001:db8:1::1"

    def text(*receivers: tuple[str, int]) -> str:
        def end(address: str, port: int) -> str:
            return f"{address}:{port}" if wide else f"[{address}]:{port}"

        to = ", ".join(f'{{ address = "{end(*one)}" }}' for one in receivers)
        feeds = "".join(f'[[replicate]]\nlisten = "{end(listen, 5000)}"\nto = [{to}]\n' for listen in (group, own))
        return f'interfaces = ["e1", "e2", "e3"]\n{feeds}'

    three = [(host(2, family), 6000), (second, 6001), (host(3, family), 6000)]
    forward = make_forward(network, text(*three))
    sockets = [receiver(network, 2, family, 6000), receiver(network, 2, family, 6001, second), receiver(network, 3, family, 6000)]
    # Their neighbours are asked for without any packet.
    wait_until(lambda: all(one["problem"] is None for feed in forward.statistics()["feeds"] for one in feed["receivers"]),
               f"never resolved: {forward.log()}")
    sender = udp_socket(network.hosts[1], family, "eth0")
    for listen in (group, own):
        sent = [f"{listen} {number}".encode() * 9 for number in range(300)]
        for payload in sent:
            sender.sendto(payload, (listen, 5000))
            time.sleep(0.001)
        # The kernel checks their checksums.
        for bound in sockets:
            assert drain(bound, len(sent)) == sent
    # Routed packets to the same devices are not taken for copies.
    assert "1 received" in network.ping(1, host(2, family))
    for feed in forward.statistics()["feeds"]:
        assert feed["packets"] == 300
        assert [one["packets"] for one in feed["receivers"]] == [300, 300, 300]
    # Another receiver, and one less.
    forward.reload(text(*three[1:]))
    sender.sendto(b"after", (group, 5000))
    assert [drain(bound, 1) for bound in sockets] == [[], [b"after"], [b"after"]]
    sources = {bound.getsockname()[0] for bound in sockets}
    assert len(sources) == 3


def test_feeds_are_not_copied_in_generic_mode(make_network, make_forward) -> None:
    network = make_network(hosts=3)
    start = 'interfaces = ["e1", "e2", "e3"]\n'
    feed = '[[replicate]]\nlisten = "10.1.0.1:5000"\nto = [{ address = "10.2.0.2:6000" }, { address = "10.3.0.2:6000" }]\n'
    forward = make_forward(network, start + 'mode = "generic"\n')
    # The mode counts from the start only.
    forward.reload(start + feed)
    assert all("generic" in one["problem"] for one in forward.statistics()["interfaces"])
    assert "e1: XDP runs in generic mode" in forward.log()
    bound = [receiver(network, number, socket.AF_INET, 6000) for number in (2, 3)]
    own = run_inside(network.router, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with own:
        own.bind(("10.1.0.1", 5000))
        sender = udp_socket(network.hosts[1], socket.AF_INET)
        sender.sendto(b"the kernel's", ("10.1.0.1", 5000))
        assert drain(own, 1) == [b"the kernel's"]
    assert not select.select(bound, [], [], 1)[0]


def test_copies_leave_where_they_fit(make_network, make_forward) -> None:
    network = make_network(hosts=3)
    network.ip(network.router, "link set dev e3 mtu 1280")
    forward = make_forward(
        network,
        'interfaces = ["e1", "e2", "e3"]\n[[replicate]]\nlisten = "239.1.1.1:5000"\ninterfaces = ["e1"]\n'
        'to = [{ address = "10.2.0.2:6000" }, { address = "10.3.0.2:6000" }]\n',
    )
    wait_until(lambda: all(one["problem"] is None for one in forward.statistics()["feeds"][0]["receivers"]), "never resolved")
    bound = [receiver(network, number, socket.AF_INET, 6000) for number in (2, 3)]
    sender = udp_socket(network.hosts[1], socket.AF_INET, "eth0")
    sender.sendto(bytes(1280 - 27), ("239.1.1.1", 5000))
    sender.sendto(bytes(1280 - 28), ("239.1.1.1", 5000))
    # By an interface that the feed is not expected on.
    stranger = udp_socket(network.hosts[2], socket.AF_INET, "eth0")
    stranger.sendto(b"not the feed", ("239.1.1.1", 5000))
    for one in bound:
        assert drain(one, 1) == [bytes(1280 - 28)]
    assert not select.select(bound, [], [], 1)[0]
    assert forward.statistics()["interfaces"][0]["packets"]["pass"]["too_large"] == 1


def test_a_change_of_receivers_loses_nothing(make_network, make_forward) -> None:
    network = make_network(hosts=3)

    def text(*hosts: int) -> str:
        to = ", ".join(f'{{ address = "{host(number)}:6000" }}' for number in hosts)
        return f'interfaces = ["e1", "e2", "e3"]\n[[replicate]]\nlisten = "10.1.0.1:5000"\nto = [{to}]\n'

    forward = make_forward(network, text(2, 3))
    wait_until(lambda: all(one["problem"] is None for one in forward.statistics()["feeds"][0]["receivers"]), "never resolved")
    bound = receiver(network, 2, socket.AF_INET, 6000)
    sender = udp_socket(network.hosts[1], socket.AF_INET)

    def change() -> None:
        for number in range(1, 9):
            forward.reload(text(2) if number % 2 else text(3, 2), number)

    worker = threading.Thread(target=change)
    worker.start()
    for number in range(6000):
        sender.sendto(number.to_bytes(4, "big"), ("10.1.0.1", 5000))
        if number % 20 == 0:
            time.sleep(0.005)
    worker.join()
    found = [int.from_bytes(payload, "big") for payload in drain(bound, 6000)]
    assert found == list(range(6000)), "each once, in order"


def test_metrics_and_health(make_network, make_forward) -> None:
    network = make_network()
    port = 9300
    forward = make_forward(network, f'{TWO}[admin]\nlisten = "127.0.0.1:{port}"\n')
    stream(network, lambda: None, 100)

    def ask(path: str) -> str:
        with run_inside(network.router, lambda: socket.create_connection(("127.0.0.1", port), timeout=LIMIT)) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    page = ask("/metrics")
    (line,) = [line for line in page.splitlines()
               if line.startswith('expressway_forward_packets_total{interface="e1"') and 'reason="forwarded"' in line]
    assert int(line.split()[-1]) >= 100, line
    assert 'expressway_drops_total{layer="xdp",reason="blackhole"} 0' in page
    assert "200 OK" in ask("/healthz")
    assert '"interfaces"' in ask("/io")
    forward.signal(signal.SIGTERM)
    assert forward.wait() == 0
    assert json.loads(forward.output())["total"]["redirect"]["forwarded"] >= 100
