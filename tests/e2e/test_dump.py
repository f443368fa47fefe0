"""`expressway dump` of live traffic: AF_XDP and the kernel's path, beside tcpdump, and as Wireshark's tools read it."""

import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import bpf, captures, clients, kernel, links
from harness.captures import Dump, tshark
from harness.daemon import finish_all
from harness.fanout import Sender
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT, PORT
from harness.server import address

UDP = f"udp port {PORT}"


@pytest.fixture
def make_dump(make_lab, tmp_path: Path) -> Iterator[Callable[..., Dump]]:
    """Starts captures; at the end each has to be alive, unless the test has ended it, and to stop cleanly."""
    running: list[Dump] = []

    def make(lab: Lab, role: str, *words: str | Path, express: bool = False) -> Dump:
        interface = links.SERVER if role == "server" else links.CLIENT
        folder = tmp_path / f"dump-{len(running)}"
        made = Dump(lab, folder, role, "-i", interface, *words)
        running.append(made)
        if express and "a security policy of this kernel refuses such programs" in made.log():
            kernel.lacks("this kernel refuses programs at entry and exit of others")
        return made

    yield make
    finish_all(running)


class Feed:
    """Datagrams from the client to a socket of the server that nobody reads."""

    def __init__(self, lab: Lab) -> None:
        self.receiver = run_inside(lab.server_namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.receiver.bind((lab.server["ipv4"], 7000))
        self.sender = Sender(lab, lab.server["ipv4"], 7000)

    def send(self, count: int) -> None:
        """Sends as many."""
        self.sender.send(count)


def start_tcpdump(lab: Lab, file: Path) -> subprocess.Popen[str]:
    """A tcpdump of the client's interface that is listening."""
    words = ["tcpdump", "-i", links.CLIENT, "-w", file, "-U", "--immediate-mode", "-B", "16384", UDP]
    process = subprocess.Popen(lab.inside("client", *words), stderr=subprocess.PIPE, text=True)
    assert process.stderr
    while "listening on" not in (line := process.stderr.readline()):
        assert line, "tcpdump has ended"
    return process


def stop_tcpdump(process: subprocess.Popen[str]) -> None:
    """Ends it; it has lost nothing."""
    # What is on its way to it is in its ring.
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT)
    assert "\n0 packets dropped by kernel" in said, said


def payloads(file: Path) -> Counter[tuple[str, ...]]:
    """The datagrams of a file, each as often as it is there."""
    return Counter(tuple(row) for row in tshark(file, "ip.src", "udp.srcport", "ip.dst", "udp.dstport", "udp.payload"))


def wait_packets(dump: Dump, least: int) -> None:
    """Waits until lines of packets have come."""
    deadline = time.monotonic() + LIMIT
    while len(dump.lines()) < least:
        assert time.monotonic() < deadline, dump.lines()
        time.sleep(0.05)


@pytest.mark.parametrize("mode", ["copy", "udp"])
def test_it_shows_the_packets_that_tcpdump_shows_at_the_other_end(
    make_lab, make_server, make_dump, certificates: Path, tmp_path: Path, mode: str
) -> None:
    lab = make_lab()
    # Segments that a device would cut are whole on one side and cut on the other.
    for role, name in (("server", links.SERVER), ("client", links.CLIENT)):
        lab.run(role, "ethtool", "-K", name, "tx-udp-segmentation", "off", "gro", "off" if role == "client" else "on")
    server = make_server(lab, mode=mode)
    theirs, ours = tmp_path / "theirs.pcap", tmp_path / "ours.pcapng"
    dump = make_dump(lab, "server", "-w", ours, UDP, express=mode == "copy")
    tcpdump = start_tcpdump(lab, theirs)
    clients.fetch(lab, "aioquic", address(lab.server["ipv4"]), certificates, ["/clip.mp4"])
    stop_tcpdump(tcpdump)
    captured = dump.end()
    assert captured == captures.count(ours) > 100
    assert payloads(ours) == payloads(theirs)
    points = Counter(row[0] for row in tshark(ours, "frame.comment", show="ip.src == " + lab.server["ipv4"]))
    verdicts = Counter(row[0] for row in tshark(ours, "frame.verdict.ebpf_xdp", show="ip.dst == " + lab.server["ipv4"]))
    if mode == "copy":
        assert all(comment.startswith("xsk copy") and f"pid {server.process.pid} " in comment for comment in points), points
        assert verdicts["4"] > 0.9 * sum(verdicts.values()), verdicts
    else:
        assert not any("xsk" in comment for comment in points), points


def test_secrets_in_the_file_decrypt_it(make_lab, make_server, make_dump, certificates: Path, tmp_path: Path) -> None:
    lab = make_lab()
    keys = tmp_path / "keys"
    make_server(lab, mode="udp", more={"tls": {"keylog": f'"{keys}"'}})
    plain, secret = tmp_path / "plain.pcapng", tmp_path / "secret.pcapng"
    without = make_dump(lab, "server", "-w", plain, UDP)
    dump = make_dump(lab, "server", "-w", secret, "--secrets", keys, UDP)
    assert "will contain TLS secrets" in dump.log()
    for name in ("aioquic", "quicgo"):
        clients.fetch(lab, name, address(lab.server["ipv4"]), certificates, ["/small.txt"])
    time.sleep(0.5)
    assert dump.end() == without.end() == captures.count(secret) == captures.count(plain)
    assert payloads(secret) == payloads(plain)
    assert not tshark(secret, "frame.number", show="_ws.malformed")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert not tshark(plain, "frame.number", show="http3")
    bodies = [row[0].replace(":", "") for row in tshark(secret, "http3.frame_payload", show="http3")]
    # Two clients, each with its body.
    assert sum(b"A small file.\n".hex() in body for body in bodies) == 2, bodies


def test_it_prints_lines_and_documents_as_packets_come(make_lab, make_server, make_dump, certificates: Path) -> None:
    lab = make_lab()
    server = make_server(lab)
    text = make_dump(lab, "server", UDP, express=True)
    documents = make_dump(lab, "server", "--json", UDP)
    clients.fetch(lab, "aioquic", address(lab.server["ipv4"]), certificates, ["/small.txt"])
    wait_packets(text, 4)
    wait_packets(documents, 4)
    first = next(line for line in text.lines() if " In " in line)
    assert f"{links.SERVER} In  q" in first and " redirect " in first and "QUIC v1 Initial dcid " in first, first
    sent = [json.loads(line) for line in documents.lines() if '"direction":"out"' in line]
    assert {document["point"] for document in sent} == {"xsk_copy"}
    assert {document["process"]["pid"] for document in sent} == {server.process.pid}
    captured = documents.end()
    assert captured == len(documents.lines())


def test_it_ends_after_a_count_and_is_read_through_a_pipe(make_lab, tmp_path: Path) -> None:
    lab = make_lab()
    command = lab.inside("server", BINARY, "dump", "-i", links.SERVER, "-w", "-", "-c", "5", "udp port 7000")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as dump:
        reader = subprocess.Popen(
            ["tshark", "-n", "-r", "-", "-T", "fields", "-e", "udp.length"], stdin=dump.stdout, stdout=subprocess.PIPE, text=True
        )
        assert dump.stderr and dump.stdout
        dump.stdout.close()
        while b"listening" not in dump.stderr.readline():
            assert dump.poll() is None
        Feed(lab).send(20)
        shown, _ = reader.communicate(timeout=LIMIT)
        assert dump.wait(LIMIT) == 0
        assert b"5 packets captured, 0 lost" in dump.stderr.read()
    assert len(shown.splitlines()) == 5 and reader.returncode == 0


def test_files_go_by_time_and_a_count_ends_them(make_lab, make_dump, tmp_path: Path) -> None:
    lab = make_lab()
    folder = tmp_path / "files"
    folder.mkdir()
    dump = make_dump(lab, "server", "-w", folder / "a", "-G", "1", "-W", "2", "udp port 7000")
    sender = Feed(lab)
    while dump.process.poll() is None:
        sender.send(10)
        time.sleep(0.1)
    assert dump.wait() == 0
    assert sorted(file.name for file in folder.iterdir()) == ["a", "a1"]
    captured, lost = dump.counts()
    assert lost == 0 and captured == sum(captures.count(file) for file in folder.iterdir()) > 0
    for file in folder.iterdir():
        assert len(tshark(file, "frame.number")) == captures.count(file)


def test_what_is_wrong_is_said(make_lab) -> None:
    lab = make_lab()

    def refused(*words: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
        command = lab.inside("server", *prefix, BINARY, "dump", *words)
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert not result.stdout
        return result.returncode, result.stderr.strip()

    code, said = refused("-i", links.SERVER, "udp", "prot", "7000")
    assert code == 2 and said.startswith("expressway: filter `udp prot 7000`: ") and "syntax error" in said, said
    unprivileged = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")
    code, said = refused("-i", links.SERVER, prefix=unprivileged)
    assert code == 1 and "CAP_BPF" in said and "\n" not in said, said


def test_killed_it_leaves_nothing_attached_and_two_do_not_mind_each_other(make_lab, make_dump, tmp_path: Path) -> None:
    lab = make_lab()
    first = make_dump(lab, "server", "-w", tmp_path / "a", "-U", "udp port 7000")
    second = make_dump(lab, "server", "-w", tmp_path / "b", "udp port 7000")
    feed = Feed(lab)
    feed.send(50)
    deadline = time.monotonic() + LIMIT
    while captures.count(tmp_path / "a") < 50:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    objects = first.objects()
    assert objects
    first.kill()
    while left := [each for each in objects if bpf.exists(*each)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert len(tshark(tmp_path / "a", "frame.number")) == 50
    feed.send(50)
    assert second.end() == 100 == captures.count(tmp_path / "b")


def test_it_ends_with_its_interface(make_lab, make_dump, tmp_path: Path) -> None:
    lab = make_lab()
    lab.add_extra_link()
    dump = make_dump(lab, "server", "-i", "extra0", "-w", tmp_path / "a", "udp port 7000")
    Feed(lab).send(5)
    lab.run("server", "ip", "link", "del", "extra0")
    dump.wait_log("interface extra0: gone")
    assert dump.process.poll() is None
    links.remove(lab)
    assert dump.wait() == 1
    assert "no interface is left to capture on" in dump.log()
    assert captures.count(tmp_path / "a") == 5


def test_it_writes_as_another_user_once_it_is_attached(make_lab, make_dump, tmp_path: Path) -> None:
    lab = make_lab()
    folder = tmp_path / "open"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    for above in (tmp_path, *tmp_path.parents):
        if str(above).startswith("/tmp/"):
            above.chmod(0o755)
    dump = make_dump(lab, "server", "-w", folder / "a", "-Z", "nobody", "udp port 7000")
    assert (folder / "a").stat().st_uid == 65534
    status = Path(f"/proc/{dump.process.pid}/status").read_text()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:"))
    assert uids.split()[1:] == ["65534"] * 4
    Feed(lab).send(5)
    time.sleep(0.2)
    assert dump.end() == 5


def test_wireshark_captures_through_it(make_lab, tmp_path: Path) -> None:
    lab = make_lab()
    # The folder of a user, before and since Wireshark 4.2.
    for folder in (tmp_path / ".config/wireshark/extcap", tmp_path / ".local/lib/wireshark/extcap"):
        folder.mkdir(parents=True)
        (folder / "expressway-extcap").symlink_to(BINARY)
    words = ["env", f"HOME={tmp_path}", "tshark", "-n", "-i", f"expressway-{links.SERVER}", "-f", "udp port 7000"]
    words += ["-c", "5", "-T", "fields", "-e", "udp.dstport"]
    tshark = subprocess.Popen(lab.inside("server", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    sender = Feed(lab)
    deadline = time.monotonic() + LIMIT
    while tshark.poll() is None:
        assert time.monotonic() < deadline
        sender.send(5)
        time.sleep(0.2)
    shown, said = tshark.communicate()
    assert shown.split() == ["7000"] * 5, said
