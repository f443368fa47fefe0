"""`expressway guard` in front of `expressway serve`: connection IDs, Retry and SYN cookies, with clients that know of neither."""

import secrets
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients, links
from harness.guard import Guard, text
from harness.lab import Lab
from harness.namespace import run_inside, udp_socket
from harness.paths import BINARY, LIMIT, PORT
from harness.server import Server, address

FAMILIES = ["ipv4", "ipv6"]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file with a key of guard and serve."""
    file = tmp_path / "guard.keys"
    file.write_text(secrets.token_hex(32) + "\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def make_bed(make_lab) -> Iterator[Callable[..., Lab]]:
    """Labs whose client end has an XDP program, which passes everything: a veth takes no answers of the other end else."""
    running: list[subprocess.Popen[str]] = []

    def make() -> Lab:
        lab = make_lab()
        command = lab.inside("client", BINARY, "drop", "-i", links.CLIENT, "--action", "pass")
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout and running[-1].stdout.readline().startswith("ready")
        return lab

    yield make
    for process in running:
        process.terminate()
        assert process.wait(LIMIT) == 0


@pytest.fixture
def make_keyed(make_server, keys: Path):
    """Starts servers that have the key, on kernel sockets: the interface's XDP program is guard's."""

    def make(lab: Lab, **settings) -> Server:
        settings.setdefault("listen", [address(lab.server[family]) for family in FAMILIES])
        return make_server(lab, mode="udp", beside=True, more={"server": {"guard_keys": f'"{keys}"'}}, **settings)

    return make


def quic(keys: Path, more: str = "") -> str:
    """A file for guard that protects the server's port."""
    return text(f'[quic]\nports = [{PORT}]\nkeys = "{keys}"\n{more}')


def counts(guard: Guard) -> dict[tuple[str, str], int]:
    """Packets by verdict and reason."""
    return {(one["verdict"], one["reason"]): one["packets"] for one in guard.status()["reasons"]}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("client", clients.CLIENT_NAMES)
def test_every_client_takes_the_retry_of_a_filter(
    make_bed, make_keyed, make_guard, certificates: Path, keys: Path, client: str, family: str
) -> None:
    lab = make_bed()
    server = make_keyed(lab)
    guard = make_guard(lab, quic(keys, 'retry = "always"'))
    assert guard.ready.startswith("ready"), guard.log()
    found = clients.fetch(lab, client, address(lab.server[family]), certificates, ["/clip.mp4", "/small.txt"])
    assert [answer.status for answer in found] == [200, 200]
    metrics = server.wait_for("address proven", lambda m: m.sum("retries_validated_total") >= 1)
    assert metrics.sum("retries_sent_total") == 0, "the server asked nobody itself"
    assert metrics.sum("refused_invalid_token_total") == 0
    seen = counts(guard)
    assert seen["answer", "retry"] >= 1
    assert guard.status()["tokens"] >= 1
    # Whatever a client sends with the server's IDs passes, from its first packet to its last.
    assert [seen["drop", f"quic_{reason}"] for reason in ("connection", "token", "challenge", "initial")] == [0] * 4


def test_a_client_that_takes_a_retry_is_learned(
    make_bed, make_keyed, make_guard, certificates: Path, keys: Path, tmp_path: Path
) -> None:
    lab = make_bed()
    server = make_keyed(lab)
    learn = f'[learn]\nfile = "{tmp_path}/learned"\nafter = "1s"\nattack = "off"\n'
    guard = make_guard(lab, quic(keys, f'retry = "always"\n{learn}'))
    # Who does not come back, or with a token of its own making, has proven nothing.
    send(lab, [b"\xc3\0\0\0\1\x08" + bytes(8) + b"\0" + token + bytes(1190) for token in (b"\0", b"\x22\xe2" + bytes(33))] * 20)
    guard.wait_status(lambda _: counts(guard)["drop", "quic_token"] >= 20)
    assert guard.status()["learn"]["proofs"] == 0

    def comes_again(status: dict) -> bool:
        (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/small.txt"])
        assert answer.status == 200
        return status["learn"]["learned"] == 1

    guard.wait_status(comes_again)
    status = guard.status()
    assert status["learn"]["proofs"] >= 2 and status["learn"]["proofs"] == status["tokens"]
    assert status["learn"]["added"] == 1
    guard.stop()
    assert f"\n{lab.client['ipv4']}/32 # " in (tmp_path / "learned").read_text()
    server.wait_for("the connections", lambda m: m.sum("connections_accepted_total") >= 2)


def send(lab: Lab, payloads: list[bytes]) -> None:
    """Datagrams to the server's port."""
    with udp_socket(lab.client_namespace, socket.AF_INET) as sender:
        for payload in payloads:
            sender.sendto(payload, (lab.server["ipv4"], PORT))


def test_ids_that_no_server_issued_are_dropped_or_counted(
    make_bed, make_keyed, make_guard, certificates: Path, keys: Path
) -> None:
    lab = make_bed()
    server = make_keyed(lab)
    guard = make_guard(lab, quic(keys))
    made_up = [b"\x41" + secrets.token_bytes(16) + bytes(30) for _ in range(300)]
    made_up += [b"\xe1\0\0\0\1" + bytes([length]) + bytes(length + 50) for length in range(21)]
    send(lab, made_up)
    # One in 65,536 could be taken for a server's.
    guard.wait_status(lambda _: counts(guard)["drop", "quic_connection"] >= len(made_up) - 2)
    (answer,) = clients.fetch(lab, "curl", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.status == 200
    assert server.metrics().sum("dropped_unknown_connection_total") <= 2
    guard.reload(quic(keys, 'unknown_ids = "count"'), "configuration reloaded")
    send(lab, made_up)
    guard.wait_status(lambda status: status["unknown_ids"] >= len(made_up) - 2)
    server.wait_for("they come", lambda m: m.sum("dropped_unknown_connection_total") >= 298)


def test_connections_outlive_a_change_of_the_key(
    make_bed, make_keyed, make_guard, certificates: Path, keys: Path
) -> None:
    lab = make_bed()
    make_keyed(lab)
    guard = make_guard(lab, quic(keys))
    client = clients.start(lab, address(lab.server["ipv4"]), certificates, ["/clip.mp4"], "-pause")
    assert client.stdout and client.stdout.readline() == "paused\n"
    keys.write_text(secrets.token_hex(32) + "\n" + keys.read_text())
    guard.reload(quic(keys), "configuration reloaded")
    report = clients.finish(client, "\n")
    assert [answer["status"] for answer in report["responses"]] == [200, 200], report
    assert counts(guard)["drop", "quic_connection"] == 0


def test_a_client_whose_address_changes_keeps_its_connection(
    make_bed, make_keyed, make_guard, certificates: Path, keys: Path
) -> None:
    lab = make_bed()
    server = make_keyed(lab, workers=2)
    guard = make_guard(lab, quic(keys, 'retry = "always"'))
    more = ("-rebind-every", "4000000")
    report = clients.report(lab, address(lab.server["ipv4"]), certificates, ["/long.mp4"], *more)
    assert [answer["status"] for answer in report["responses"]] == [200], report
    server.wait_for("the connection", lambda m: m.sum("connections_accepted_total") == 1)
    assert counts(guard)["drop", "quic_connection"] == 0


def test_a_flood_of_initials_is_asked_and_a_client_is_served(
    make_bed, make_keyed, make_guard, certificates: Path, keys: Path
) -> None:
    lab = make_bed()
    server = make_keyed(lab)
    guard = make_guard(lab, quic(keys, 'retry = "20/s"'))
    initial = b"\xc3\0\0\0\1\x08" + bytes(8) + b"\0\0" + bytes(1190)
    send(lab, [initial] * 1000)
    guard.wait_status(lambda _: counts(guard)["answer", "retry"] >= 500)
    (answer,) = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    assert answer.status == 200
    server.wait_for("datagrams", lambda m: m.sum("datagrams_received_total") > 0)


def test_keys_that_cannot_be_read_are_one_line(make_lab, keys: Path, tmp_path: Path) -> None:
    lab = make_lab()
    file = tmp_path / "guard.toml"

    def refused(content: str) -> str:
        file.write_text(content)
        command = lab.inside("server", BINARY, "guard", "--config", file, "--check")
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert result.returncode == 2, result.stderr
        (line,) = result.stderr.splitlines()
        return line

    keys.chmod(0o644)
    assert "chmod" in refused(quic(keys))
    keys.chmod(0o600)
    keys.write_text("0123\n")
    assert "64 hexadecimal digits" in refused(quic(keys))
    assert "needs `keys`" in refused(text(f'[quic]\nports = [{PORT}]\nretry = "always"'))


def syn(source: str, destination: str, port: int) -> bytes:
    """An IPv4 packet with a SYN, of whoever."""

    def checksum(data: bytes) -> int:
        total = sum(struct.unpack(f"!{len(data) // 2}H", data))
        total = (total & 0xFFFF) + (total >> 16)
        return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF

    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    tcp = struct.pack("!HHIIBBHHH", port, PORT, 1, 0, 5 << 4, 2, 64240, 0, 0)
    tcp = tcp[:16] + struct.pack("!H", checksum(addresses + struct.pack("!HH", 6, len(tcp)) + tcp)) + tcp[18:]
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + addresses + tcp


def flood(lab: Lab, guard: Guard) -> None:
    """SYNs of neighbours that there are not, until some are answered by guard."""
    network = lab.server["ipv4"].rsplit(".", 1)[0]

    def make() -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)

    with run_inside(lab.client_namespace, make) as sender:
        deadline, port = time.monotonic() + LIMIT, 1024
        while counts(guard)["answer", "syn_cookie"] < 10:
            assert time.monotonic() < deadline, guard.status()
            for host in range(100, 200):
                sender.sendto(syn(f"{network}.{host}", lab.server["ipv4"], port), (lab.server["ipv4"], 0))
            port += 1


def cookies_taken(lab: Lab) -> int:
    """SYN cookies that the server's kernel took."""
    names, values = [
        line.split() for line in lab.run("server", "cat", "/proc/net/netstat").splitlines() if line.startswith("TcpExt:")
    ]
    return int(values[names.index("SyncookiesRecv")])


def curl(lab: Lab, certificates: Path, family: str, version: str) -> bytes:
    """The clip, over TCP."""
    connect = f"edge.test:{PORT}:{lab.server[family]}"
    words = ["curl", "-sSf", f"--http{version}", "--cacert", certificates / "ca.pem", "--resolve", connect]
    command = lab.inside("client", *words, f"https://edge.test:{PORT}/clip.mp4")
    return subprocess.run(command, capture_output=True, timeout=LIMIT, check=True).stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_tcp_clients_come_through_syn_cookies(
    make_bed, make_keyed, make_guard, certificates: Path, root: Path, family: str
) -> None:
    lab = make_bed()
    lab.run("server", "sysctl", "-qw", "net.ipv4.tcp_syncookies=2")
    server = make_keyed(lab)
    server.wait_tcp([address(lab.server[one]) for one in FAMILIES])
    guard = make_guard(lab, text(f'[tcp]\nports = [{PORT}]\nsyn_cookies = "always"'))
    assert guard.ready.startswith("ready"), guard.log()
    clip = (root / "clip.mp4").read_bytes()
    for count, version in enumerate(("1.1", "2"), 1):
        assert curl(lab, certificates, family, version) == clip
        assert counts(guard)["answer", "syn_cookie"] >= count
    assert cookies_taken(lab) >= 2
    assert counts(guard)["drop", "tcp_ack"] == 0


def test_a_flood_of_syns_is_answered_before_the_stack(
    make_bed, make_keyed, make_guard, certificates: Path, root: Path
) -> None:
    lab = make_bed()
    # A short queue, which a flood fills soon.
    lab.run("server", "sysctl", "-qw", "net.core.somaxconn=64", "net.ipv4.tcp_syncookies=1")
    server = make_keyed(lab)
    server.wait_tcp([address(lab.server[one]) for one in FAMILIES])
    guard = make_guard(lab, text(f'[tcp]\nports = [{PORT}]\nsyn_cookies = "under-load"'))
    clip = (root / "clip.mp4").read_bytes()
    assert curl(lab, certificates, "ipv4", "1.1") == clip
    assert counts(guard)["answer", "syn_cookie"] == 0, "the queue is empty"
    flood(lab, guard)
    assert curl(lab, certificates, "ipv4", "1.1") == clip


def test_a_kernel_set_to_no_cookies_is_one_line(make_lab, tmp_path: Path) -> None:
    lab = make_lab()
    file = tmp_path / "guard.toml"
    file.write_text(text('[tcp]\nports = [80]\nsyn_cookies = "always"'))
    lab.run("server", "sysctl", "-qw", "net.ipv4.tcp_syncookies=1")
    command = lab.inside("server", BINARY, "guard", "--config", file)
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    (line,) = result.stderr.splitlines()
    assert (result.returncode, "sysctl -w net.ipv4.tcp_syncookies=2" in line) == (1, True), line
    assert not lab.programs("server")
