"""`expressway guard` on a veth: filtering, changes while traffic flows, and what happens to it."""

import json
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import foreign, links
from harness.guard import answers, text
from harness.namespace import udp_socket
from harness.paths import BINARY, LIMIT, run
from test_edge_oracles import ipv4, raw_socket


@pytest.fixture
def bpffs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A BPF file system of the test's own."""
    folder = tmp_path / "bpf"
    folder.mkdir()
    run(["mount", "-t", "bpf", "bpf", folder])
    monkeypatch.setenv("LIBXDP_BPFFS", str(folder))
    yield folder
    run(["umount", "-l", folder])


SMALLEST = """interfaces = ["server0"]
allow = ["192.0.2.0/24"]
block = ["198.51.100.0/24"]
[[rule]]
name = "dns-answers"
protocol = "udp"
source_port = 53
limit = "10k/s"
"""


def test_the_smallest_file_filters(make_lab, make_guard) -> None:
    lab = make_lab()
    guard = make_guard(lab, SMALLEST)
    assert guard.ready == "ready interface=server0 mode=native\n", guard.log()
    assert answers(lab)
    guard.stop()


def test_no_packet_comes_past_the_filter_behind_tags(make_lab, make_guard) -> None:
    """The kernel takes off any number of VLAN tags that name no VLAN."""
    lab = make_lab()
    bound = udp_socket(lab.server_namespace, socket.AF_INET)
    bound.bind((lab.server["ipv4"], 7000))
    sender = raw_socket(lab.client_namespace, "client0")
    (link,) = json.loads(lab.run("server", "ip", "-json", "link", "show", "server0"))
    macs = bytes.fromhex(link["address"].replace(":", "")) + b"\x02\0\0\0\0\x02"

    def arrive() -> list[bytes]:
        for tags in range(6):
            body = struct.pack("!HHHH", 4000, 7000, 9, 0) + b"%d" % tags
            sender.send(macs + b"\x81\0\0\0" * tags + ipv4(lab.client["ipv4"], lab.server["ipv4"], 17, body, 0))
        found = []
        while select.select([bound], [], [], 1)[0]:
            found.append(bound.recv(10))
        return found

    assert arrive() == [b"0", b"1", b"2", b"3", b"4", b"5"], "the kernel takes them all"
    guard = make_guard(lab, text(f'block = ["{lab.client["ipv4"]}"]'))
    assert arrive() == []
    guard.stop()


def test_lists_and_rules_change_while_it_runs(make_lab, make_guard, tmp_path: Path) -> None:
    lab = make_lab()
    guard = make_guard(lab, text())
    assert answers(lab)
    client = lab.client["ipv4"]
    listed = tmp_path / "guard" / "list"
    listed.write_text(f"# attackers\n{client}\n")
    guard.reload(text('block_file = "list"'), "configuration reloaded")
    assert not answers(lab)
    # The first counters go on, and what is wrong changes nothing.
    guard.expect("configuration not reloaded")
    listed.write_text(f"{client}\n203.0.1")
    guard.reload(text('block_file = "list"'), "the file is probably still being written")
    guard.reload(text('blok = ["192.0.2.0/24"]'), "blok")
    assert not answers(lab)
    reasons = {(one["verdict"], one["reason"]): one["packets"] for one in json.loads(guard.ask("/io")[1])["reasons"]}
    assert reasons["drop", "blocked"] >= 2
    assert reasons["pass", "default"] >= 1
    rule = '[[rule]]\nname = "ping"\nprotocol = "icmp"\naction = "{}"\n'
    guard.reload(text() + rule.format("drop"), "configuration reloaded")
    assert not answers(lab)
    guard.reload(text('dry_run = true') + rule.format("drop"), "configuration reloaded")
    assert answers(lab)
    status, page = guard.ask("/metrics")
    assert status == 200
    (dropped,) = [line for line in page.splitlines()
                  if line.startswith('expressway_guard_rule_dropped_packets_total{rule="ping"}')]
    assert int(dropped.split()[-1]) >= 2, "of both programs"
    assert guard.ask("/healthz")[0] == 200


def test_a_payload_decides(make_lab, make_guard) -> None:
    lab = make_lab()
    rule = '[[rule]]\nname = "probe"\nprotocol = "udp"\npayload = "offset 2: 17 00 03 2a"\naction = "drop"\n'
    guard = make_guard(lab, text(rule))
    with udp_socket(lab.server_namespace, socket.AF_INET) as server, udp_socket(
        lab.client_namespace, socket.AF_INET
    ) as client:
        server.bind((lab.server["ipv4"], 7000))
        server.settimeout(LIMIT)
        for payload in (b"..\x17\0\3\x2a and more", b"..\x17\0\3\x2b and more"):
            client.sendto(payload, (lab.server["ipv4"], 7000))
        assert server.recv(100) == b"..\x17\0\3\x2b and more"
    (counted,) = json.loads(guard.ask("/io")[1])["rules"]
    assert (counted["rule"], counted["dropped_packets"]) == ("probe", 1)


def test_what_cannot_be_put_everywhere_is_taken_back(make_lab, make_guard) -> None:
    lab = make_lab()
    guard = make_guard(lab, text())
    guard.expect("configuration not reloaded")
    blocked = f'block = ["{lab.client["ipv4"]}"]\n'
    guard.reload(blocked + text().replace("]", ', "gone0"]', 1), "gone0: no such interface")
    assert answers(lab)
    guard.reload(text(blocked), "configuration reloaded")
    assert not answers(lab)


def test_it_goes_on_when_nobody_reads_its_statistics(make_lab, make_guard) -> None:
    lab = make_lab()
    guard = make_guard(lab, text(f'block = ["{lab.client["ipv4"]}"]'))
    assert guard.process.stdout
    guard.process.stdout.close()
    guard.expect("statistics not printed")
    guard.signal(signal.SIGUSR1)
    guard.wait_log("statistics not printed: standard output")
    assert not answers(lab)
    assert guard.ask("/healthz")[0] == 200


def test_an_interface_goes_and_returns(make_lab, make_guard) -> None:
    lab = make_lab()
    guard = make_guard(lab, text(f'block = ["{lab.client["ipv4"]}"]'))
    assert not answers(lab)
    links.remove(lab)
    guard.wait_log("interface is gone")
    links.recreate(lab)
    guard.wait_log("interface is back")
    assert not answers(lab)
    assert guard.ask("/healthz")[0] == 200


def test_what_prevents_it_is_one_line(make_lab, tmp_path: Path) -> None:
    lab = make_lab()
    file = tmp_path / "guard.toml"

    def refused(content: str, code: int, *words: str) -> str:
        file.write_text(content)
        command = lab.inside("server", BINARY, "guard", "--config", file, *words)
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert result.returncode == code, result.stderr
        (line,) = result.stderr.splitlines()
        return line

    assert "gone0: no such interface" in refused('interfaces = ["gone0"]\n', 1)
    assert "guard.toml:2: block" in refused('interfaces = ["server0"]\nblock = ["a"]\n', 2, "--check")
    assert "ready" not in run(lab.inside("server", BINARY, "guard", "--config", write(file, SMALLEST), "--check"))
    foreign.attach(lab, foreign.BUILT)
    assert "foreign_pass" in refused(SMALLEST, 1)
    foreign.detach(lab)
    assert not lab.programs("server")


def write(file: Path, content: str) -> Path:
    """The file with that content."""
    file.write_text(content)
    return file


@pytest.mark.parametrize("pin", [False, True])
def test_sigkill_leaves_what_was_asked_for(make_lab, make_guard, bpffs: Path, pin: bool) -> None:
    lab = make_lab()
    blocked = f'block = ["{lab.client["ipv4"]}"]\n'
    pinned = "pin = true\n" if pin else ""
    first = make_guard(lab, text(pinned + blocked))
    assert not answers(lab)
    first.kill()
    assert bool(lab.programs("server")) == pin
    assert answers(lab) != pin
    # The next start takes over, whether it pins or not, and leaves nothing.
    second = make_guard(lab, text(pinned))
    assert second.ready.startswith("ready"), second.log()
    assert answers(lab)
    second.stop()
    assert not lab.programs("server")
    assert not pin or not list((bpffs / "expressway").iterdir())


def test_a_start_without_pin_takes_over_from_one_with_it(make_lab, make_guard, bpffs: Path) -> None:
    lab = make_lab()
    make_guard(lab, text("pin = true")).kill()
    second = make_guard(lab, text())
    assert second.ready.startswith("ready"), second.log()
    second.stop()
    assert not lab.programs("server")
    assert not list((bpffs / "expressway").iterdir())
