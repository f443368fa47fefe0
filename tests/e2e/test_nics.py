"""`expressway bench` on NICs between two hosts. Two network namespaces are the hosts: a veth that is measured joins them, and
another one for control. No figure is judged here."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.daemon import Daemon
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT

SCENARIO = """title = "a trial"
kind = "gateway"
claim = "It runs."
measures = "What a request costs."
held_equal = ["a veth"]
beds = ["lab", "nics"]
rounds = 1
seconds = 0.5
warmup = 0.2
[sweep]
udp_segmentation = ["off", "on"]
[settings]
body = "4KiB"
[[contestant]]
name = "by sockets"
side = "kernel"
server = "expressway"
io = "udp"
[[contestant]]
name = "by copy"
side = "xdp"
server = "expressway"
io = "copy"
[[contestant]]
name = "in labs only"
side = "kernel"
server = "expressway"
io = "udp"
beds = ["lab"]
[on_nics]
held_equal = ["two hosts"]
"""

PACKETS = """title = "packets by themselves"
kind = "packet-io"
claim = "They move."
measures = "What a packet costs."
held_equal = ["two hosts"]
beds = ["nics"]
rounds = 1
seconds = 0.3
[[contestant]]
name = "by copy"
side = "xdp"
way = "af-xdp-copy"
"""

FLOOD = f"""{PACKETS}
[sweep]
direction = ["transmit", "receive"]
"""

AT_A_RATE = f"""{PACKETS}
[settings]
direction = "receive"
sender = "live"
rate = 2000
[[contestant]]
name = "by sockets"
side = "kernel"
way = "recvmmsg"
"""

XDP = """title = "frames that XDP takes"
kind = "xdp"
claim = "They are taken."
measures = "What a frame costs."
held_equal = ["two hosts"]
beds = ["nics"]
rounds = 1
seconds = 0.3
[settings]
rate = 20000
[[contestant]]
name = "by the kernel"
side = "kernel"
way = "kernel"
[[contestant]]
name = "by a filter"
side = "kernel"
way = "nftables-raw"
[[contestant]]
name = "by XDP"
side = "xdp"
way = "expressway"
[[contestant]]
name = "passed by XDP"
side = "xdp"
way = "expressway"
action = "pass"
"""

NEAR, FAR = f"nics{os.getpid()}-near", f"nics{os.getpid()}-far"
CONTROL = "198.51.100.2"


def ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    """The two hosts."""
    for name in (NEAR, FAR):
        ip(f"netns add {name}")
        ip(f"-n {name} link set lo up")
    try:
        for interface, network in (("eth1", "192.0.2"), ("eth0", "198.51.100")):
            ip(f"-n {NEAR} link add {interface} type veth peer name {interface} netns {FAR}")
            for name, number in ((NEAR, 1), (FAR, 2)):
                ip(f"-n {name} address add {network}.{number}/24 dev {interface}")
                ip(f"-n {name} link set {interface} up")
                subprocess.run(
                    ["ip", "netns", "exec", name, "ethtool", "-K", interface, "gro", "on"], check=True, capture_output=True
                )
        yield
    finally:
        for name in (NEAR, FAR):
            ip(f"netns del {name}")


@pytest.fixture
def place(hosts: None, tmp_path: Path) -> Path:
    """A folder with a token and a scenario."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)
    (tmp_path / "trial.toml").write_text(SCENARIO)
    return tmp_path


class End(Daemon):
    """A far end."""

    def __init__(self, place: Path, *more: str, control: str = CONTROL) -> None:
        words = [BINARY, "bench", "end", "--listen", f"{control}:0", "--token", place / "token", "--interface", "eth1"]
        self.log_file = place / "end.log"
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", FAR, *map(str, words), *more, "--out", str(place / "far")],
            stdout=subprocess.PIPE,
            stderr=self.log_file.open("w"),
            text=True,
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().split()
        assert ready and ready[0] == "ready", self.log()
        assert ready[2:] == ["interface=eth1", "address=192.0.2.2"]
        self.address = ready[1].removeprefix("listen=")

    def __enter__(self) -> "End":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


def command(place: Path, address: str, *more: str, token: Path | None = None, interface: str = "eth1") -> list[str]:
    """A near end's command."""
    words = [BINARY, "bench", place / "trial.toml", "--end", address, "--token", token or place / "token"]
    words += ["--interface", interface, "--out", place / "near", "--peers", place]
    return ["ip", "netns", "exec", NEAR, *map(str, words), *more]


def near(place: Path, address: str, *more: str, code: int = 0, **options: object) -> str:
    """Runs a near end; gives what it complained of, or said."""
    words = command(place, address, *more, **options)  # type: ignore[arg-type]
    result = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stderr.splitlines()[-1] if code else result.stdout


def lines(place: Path, kind: str) -> list[dict]:
    """The raw lines of a kind."""
    text = (place / "near" / "raw.jsonl").read_text()
    return [line[kind] for line in map(json.loads, text.splitlines()) if kind in line]


def features() -> str:
    return subprocess.run(
        ["ip", "netns", "exec", NEAR, "ethtool", "-k", "eth1"], check=True, capture_output=True, text=True
    ).stdout


def test_a_run_between_two_hosts_changes_nothing_that_was_not_allowed(place: Path) -> None:
    before = features()
    with End(place) as end:
        near(place, end.address)
        assert features() == before
        runs, missing = lines(place, "run"), lines(place, "missing")
        assert [run["contestant"] for run in runs] == ["by sockets"]
        assert runs[0]["values"]["requests_per_second"] > 0 and runs[0]["detail"]["server_cpu"]["host_ns"] > 0
        reasons = {(one["point"]["udp_segmentation"], one["contestant"]): one["reason"] for one in missing}
        had = runs[0]["point"]["udp_segmentation"]
        other = {"on": "off", "off": "on"}[had]
        assert "--xdp allows it" in reasons[(had, "by copy")] and "--offloads" in reasons[(other, "by sockets")]
        (scenario,) = lines(place, "scenario")
        assert scenario["name"] == "trial@nics" and scenario["bed"] == "nics" and scenario["held_equal"] == ["two hosts"]
        hosts = scenario["hosts"]
        assert (hosts["near"]["address"], hosts["far"]["address"]) == ("192.0.2.1", "192.0.2.2")
        assert hosts["near"]["driver"]["driver"] == "veth" and hosts["far_environment"]["kernel"]
        assert "Two hosts:" in (place / "near" / "report.md").read_text()


def test_what_is_allowed_is_changed_and_put_back(place: Path) -> None:
    before = features()
    with End(place) as end:
        near(place, end.address, "--offloads", "--server", "by sockets")
        points = [run["point"]["udp_segmentation"] for run in lines(place, "run")]
        assert points == ["off", "on"] and features() == before


@pytest.mark.parametrize("scenario", [FLOOD, AT_A_RATE], ids=["flood", "at a rate"])
def test_packets_by_themselves_pay_for_the_whole_host(place: Path, scenario: str) -> None:
    (place / "trial.toml").write_text(scenario)
    with End(place, "--xdp") as end:
        near(place, end.address)
        (reason,) = {one["reason"] for one in lines(place, "missing")}
        assert "--xdp allows it" in reason
        near(place, end.address, "--xdp")
        runs = lines(place, "run")
        assert not lines(place, "missing") and {run["contestant"] for run in runs} >= {"by copy"}
        for run in runs:
            values, spent = run["values"], run["detail"]["spent"]
            assert 0 < values["process_ns_per_packet"] < values["ns_per_packet"] and spent["host_ns"] > 0, run
            assert "napi_ns_per_packet" not in values
            if run["contestant"] == "by copy":
                # What is sent before the neighbour is known goes through the kernel.
                assert run["detail"]["moved"]["obtained"] == "copy" and values["xsk_percent"] > 30
            if scenario is AT_A_RATE:
                assert values["lost_percent"] < 50
    # Without leave at the far end its load is refused, with what to do.
    with End(place) as end:
        near(place, end.address, "--xdp", "--server", "by copy", code=1)
        (failed,) = lines(place, "failed")
        assert "start it with --xdp" in failed["reason"]


def test_frames_are_taken_by_xdp_and_by_the_kernel(place: Path) -> None:
    (place / "trial.toml").write_text(XDP)
    with End(place, "--xdp") as end:
        near(place, end.address)
        assert [run["contestant"] for run in lines(place, "run")] == ["by the kernel"]
        near(place, end.address, "--xdp")
        runs = {run["contestant"]: run for run in lines(place, "run")}
        assert runs.keys() == {"by the kernel", "by XDP", "passed by XDP"}
        for run in runs.values():
            assert run["detail"]["flood"]["spent"]["host_ns"] > 0 and run["values"]["ns_per_packet"] > 0
            assert 0 < run["values"]["mpps"] <= run["values"]["offered_mpps"] * 1.05, run
        (missing,) = lines(place, "missing")
        assert missing["contestant"] == "by a filter" and "lab only" in missing["reason"]
        links = subprocess.run(["ip", "-n", NEAR, "link", "show", "dev", "eth1"], check=True, capture_output=True, text=True)
        assert "xdp" not in links.stdout, "the program went with its run"
    # What would take the control connection with it, or packets of an interface above, is left out.
    with End(place, "--xdp", control="192.0.2.2") as end:
        near(place, end.address, "--xdp")
        assert {run["contestant"] for run in lines(place, "run")} == {"by the kernel", "passed by XDP"}
        (reason,) = {one["reason"] for one in lines(place, "missing") if one["contestant"] == "by XDP"}
        assert "the control connection's too, by 192.0.2.1" in reason
    ip(f"-n {NEAR} link add upper0 link eth1 type macvlan")
    try:
        with End(place, "--xdp") as end:
            near(place, end.address, "--xdp")
            (reason,) = {one["reason"] for one in lines(place, "missing") if one["contestant"] == "by XDP"}
            assert "those of upper0 above it too" in reason
    finally:
        ip(f"-n {NEAR} link del upper0")


def test_ends_that_do_not_fit_say_why_in_one_line(place: Path) -> None:
    other = place / "other"
    other.write_text("fedcba9876543210" * 2)
    other.chmod(0o600)
    open_token = place / "open"
    open_token.write_text("fedcba9876543210" * 2)
    open_token.chmod(0o644)
    with End(place) as end:
        assert "both ends need the same token" in near(place, end.address, token=other, code=1)
        assert "can be accessed by others than its owner" in near(place, end.address, token=open_token, code=2)
        assert "interface nic9: no such interface here" in near(place, end.address, interface="nic9", code=1)
        assert "not another address in the network of eth0" in near(place, end.address, interface="eth0", code=1)
        assert near(place, end.address, "--server", "by sockets").count("by sockets"), "it serves on"
    assert "far end" in near(place, end.address, code=1), "nobody listens any more"


def test_garbage_at_either_end_is_an_error_and_nothing_more(place: Path) -> None:
    with End(place) as end:
        host, port = end.address.split(":")

        def babble() -> None:
            with socket.create_connection((host, int(port)), timeout=LIMIT) as stranger:
                stranger.sendall(bytes(range(256)) * 64)

        run_inside(NEAR, babble)
        near(place, end.address, "--server", "by sockets")

    listener = run_inside(FAR, lambda: socket.create_server((CONTROL, 0)))

    def answer() -> None:
        stream, _ = listener.accept()
        with stream:
            stream.sendall(b"\x16\x03\x03\xff\xffgarbage" * 100)
            stream.recv(65536)

    thread = threading.Thread(target=answer)
    thread.start()
    error = near(place, f"{CONTROL}:{listener.getsockname()[1]}", code=1)
    thread.join()
    listener.close()
    assert f"far end {CONTROL}" in error


def started(run: subprocess.Popen[str]) -> None:
    """Waits until a near end has one run behind it, so that the next is under way or about to be."""
    assert run.stderr is not None
    next(line for line in run.stderr if "round=0" in line)


def test_a_far_end_that_vanishes_ends_the_run_with_what_was_measured(place: Path) -> None:
    with End(place) as end:
        words = command(place, end.address, "--rounds", "1000", "--server", "by sockets")
        run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started(run)
        end.kill()
        _, said = run.communicate(timeout=LIMIT)
        assert run.returncode == 1 and f"connection to far end {end.address} lost" in said.splitlines()[-1], said
        assert lines(place, "run") and not programs(FAR)


def test_programs_of_the_far_end_go_with_a_near_end_that_is_killed(place: Path) -> None:
    with End(place) as end:
        words = command(place, end.address, "--rounds", "1000", "--seconds", "60", "--server", "by sockets")
        run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not programs(FAR):
            assert run.poll() is None
        run.kill()
        run.communicate(timeout=LIMIT)
        while programs(FAR) or programs(NEAR, "expressway"):
            assert end.process.poll() is None


def programs(namespace: str, name: str = "expressway-load") -> list[int]:
    """The processes of this name in a namespace."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], check=True, capture_output=True, text=True).stdout
    found = []
    for pid in map(int, listed.split()):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == name[:15]:
                found.append(pid)
        except OSError:
            continue
    return found
