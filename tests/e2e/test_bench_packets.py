"""`expressway bench` of what the kernel does with packets: every scenario with all its contestants, briefly."""

import contextlib
import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from harness.paths import BINARY, LIMIT, ROOT

# What keeps the long curves short here.
SCENARIOS = {
    "xdp-drop": (),
    "xdp-load": ("rate=2000",),
    "xdp-cost": (),
    "xdp-forward-one": (),
    "xdp-forward-two": (),
    "xdp-latency": ("rate=500",),
    "xdp-cores": (),
    "xdp-flows": ("flows=1,300",),
    "af-xdp-receive": (),
    "af-xdp-forward": (),
    "af-xdp-transmit": (),
    "receive-flows": ("flows=2", "rate=2000"),
    "edge-program-guard": ("calls=3",),
    "edge-program-forward": ("routes=2000", "calls=3"),
    "edge-program-balance": ("calls=3", "services=1,9", "nodes=9"),
    "edge-drop": (),
    "edge-forward": ("routes=1000",),
    "edge-balance": ("flows=300",),
    "edge-latency": ("rate=500",),
    "edge-attack": ("attack=20000",),
}

FILES = ROOT / "crates" / "bench" / "scenarios"


def bench(scenario: str | Path, out: Path, *words: str) -> list[str]:
    """The command that runs a scenario on a machine without servers to compare with."""
    command = [BINARY, "--log-level", "info", "bench", scenario, "--out", out, "--peers", out / "no-peers", *words]
    return [str(word) for word in command]


def lines(out: Path, kind: str) -> list[dict]:
    """The lines of a kind of a raw file."""
    return [line[kind] for line in map(json.loads, (out / "raw.jsonl").read_text().splitlines()) if kind in line]


def namespaces() -> list[str]:
    """The network namespaces of benchmarks."""
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith("expressway-bench-")]


def test_no_scenario_of_packets_is_left_out() -> None:
    kinds = {path.stem: tomllib.loads(path.read_text())["kind"] for path in FILES.glob("*.toml")}
    ours = ("xdp", "prog-run", "attack")
    packets = {name for name, kind in kinds.items() if kind.startswith(ours)}
    assert packets == {name for name in SCENARIOS if kinds[name].startswith(ours)}


def moved_packets(out: Path) -> bool:
    """Every run has a headline."""
    (described,) = lines(out, "scenario")
    return all(run["values"][described["headline"]] > 0 for run in lines(out, "run"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_contestant_is_there_and_has_figures(name: str, tmp_path: Path) -> None:
    changes = [word for change in SCENARIOS[name] for word in ("--set", change)]
    # In a fifth of a second a contestant may get nothing of a core that others want too.
    for seconds in ("0.2", "1", "4"):
        out = tmp_path / seconds
        command = bench(name, out, "--rounds", "1", "--seconds", seconds, *changes)
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
        if result.returncode == 0 and moved_packets(out):
            break
    tmp_path = out
    assert result.returncode == 0, result.stdout + result.stderr
    assert not lines(tmp_path, "failed")
    scenario = tomllib.loads((FILES / f"{name}.toml").read_text())
    here = [contestant for contestant in scenario["contestant"] if "lab" in contestant.get("beds", ["lab"])]
    # Debian 12 has no such program.
    absent = [] if shutil.which("xdp-forward") else [one["name"] for one in here if one.get("way") == "xdp-forward"]
    assert {missing["contestant"] for missing in lines(tmp_path, "missing")} == set(absent)
    here = [contestant for contestant in here if contestant["name"] not in absent]
    contestants = [contestant["name"] for contestant in here]
    runs = lines(tmp_path, "run")
    assert {run["contestant"] for run in runs} == set(contestants) and len(runs) % len(contestants) == 0
    (described,) = lines(tmp_path, "scenario")
    for run in runs:
        values = run["values"]
        # What is less than another may be less than nothing; a loss or a waiting time may be none.
        assert values[described["headline"]] > 0, run
        assert all(value >= 0 for key, value in values.items() if key != "added_ns"), run
        if "packets" in run["detail"].get("flood", {}):
            # Frames of neighbour discovery are among those that an interface received.
            assert 0 < run["detail"]["flood"]["packets"] <= offered(run["detail"]["flood"]) + 50, run
    (environment,) = lines(tmp_path, "environment")
    ways = {contestant["way"] for contestant in here if "way" in contestant}
    assert ways <= set(environment["programs"])
    report = (tmp_path / "report.md").read_text()
    assert scenario["title"] in report
    published = [one for one in described["beside"] if not one["at"] or any(one["at"] == run["point"] for run in runs)]
    assert ("How this machine differs" in report) == bool(published)


def offered(flood: dict) -> int:
    """Frames that reached the link."""
    return sum(sent["sent"] + sent["refused"] for sent in flood["sent"])


def test_frames_of_both_programs_are_accounted_for_and_a_program_runs_alone(tmp_path: Path) -> None:
    command = bench("xdp-cost", tmp_path, "--rounds", "1", "--seconds", "0.2", "--server", "XDP count")
    subprocess.run(command, capture_output=True, timeout=LIMIT, check=True)
    (run,) = lines(tmp_path, "run")
    values, detail = run["values"], run["detail"]
    each = {name: (one["process_ns"] + one["napi_ns"]) / one["packets"] for name, one in detail.items()}
    assert values["ns_per_packet"] == pytest.approx(each["flood"])
    assert values["added_ns"] == pytest.approx(each["flood"] - each["less"])
    assert 0 < values["program_ns"] < 1e6


def test_a_peer_that_is_not_there_is_missing_with_how_to_install_it(tmp_path: Path) -> None:
    # All that the suite itself takes, and no peer.
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in ("ip", "ethtool", "tc", "taskset", "chrt", "tee", "cat", "sh"):
        found = subprocess.run(["sh", "-c", f"command -v {program}"], capture_output=True, text=True, check=True)
        (folder / program).symlink_to(Path(found.stdout.strip()).resolve())
    words = ("--rounds", "1", "--seconds", "0.2")
    servers = [word for name in ("xdp-filter", "conntrack", "XDP drop") for word in ("--server", name)]
    command = bench("xdp-drop", tmp_path, *words, *servers)
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env={"PATH": str(folder)})
    assert result.returncode == 0, result.stderr
    reasons = {missing["contestant"]: missing["reason"] for missing in lines(tmp_path, "missing")}
    assert reasons == {
        "conntrack": "iptables: no such program; on Debian: apt-get install iptables",
        "xdp-filter": "xdp-filter: no such program; on Debian: apt-get install xdp-tools",
    }
    assert [run["contestant"] for run in lines(tmp_path, "run")] == ["XDP drop"]
    assert "apt-get install xdp-tools" in (tmp_path / "report.md").read_text()


SETTINGS = ("net/ipv4/ip_forward", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/all/send_redirects")


def machine() -> dict[str, str]:
    """What a benchmark could have left of its own in the machine's namespace."""
    found = {name: Path("/proc/sys", name).read_text() for name in SETTINGS}
    found["rules"] = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    return found


@pytest.mark.parametrize("contestant", ["kernel forwarding with conntrack", "DPDK testpmd"])
def test_settings_and_processes_stay_in_namespaces_and_go_whatever_ends_it(tmp_path: Path, contestant: str) -> None:
    name = "xdp-flows" if "conntrack" in contestant else "xdp-forward-two"
    before = machine()

    def start(seconds: str) -> subprocess.Popen[str]:
        command = bench(name, tmp_path, "--rounds", "1000", "--seconds", seconds, "--server", contestant)
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def inside(run: subprocess.Popen[str]) -> list[str]:
        """The programs in the run's namespaces."""
        found = []
        for one in (one for one in namespaces() if one.startswith(f"expressway-bench-{run.pid}-")):
            pids = subprocess.run(["ip", "netns", "pids", one], capture_output=True, text=True, check=False).stdout
            for pid in pids.split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    found.append(Path("/proc", pid, "comm").read_text().strip())
        return found

    ended = start("0.2")
    assert ended.stderr
    next(line for line in ended.stderr if "round=0" in line)
    ended.terminate()
    _, said = ended.communicate(timeout=LIMIT)
    assert ended.returncode == 1 and "interrupted by a signal" in said
    assert not any(one.startswith(f"expressway-bench-{ended.pid}-") for one in namespaces())
    assert machine() == before

    killed = start("60")
    wanted = {"expressway", "dpdk-testpmd"} if "DPDK" in contestant else {"expressway"}
    while not wanted <= set(inside(killed)):
        assert killed.poll() is None
    killed.kill()
    killed.communicate(timeout=LIMIT)
    assert inside(killed)
    command = bench("xdp-drop", tmp_path, "--rounds", "1", "--seconds", "0.2", "--server", "XDP drop")
    subprocess.run(command, capture_output=True, timeout=LIMIT, check=True)
    assert not any(one.startswith(f"expressway-bench-{killed.pid}-") for one in namespaces())
    assert machine() == before
