"""`expressway bench`: scenarios from files, runs that leave nothing behind, and what is made of raw files. No figure is judged
here: only that figures come about and are handed on."""

import copy
import json
import subprocess
from pathlib import Path

import pytest
from harness.paths import BINARY, LIMIT, PEERS

SCENARIO = """title = "a trial"
kind = "gateway"
claim = "It runs."
measures = "What a request costs."
held_equal = ["everything"]
beds = ["lab"]
headline = "gbit_per_cpu_second"
base = "by sendmmsg"
rounds = 1
seconds = 0.5
warmup = 0.2
[sweep]
body = ["4KiB"]
[[contestant]]
name = "nobody"
side = "peer"
server = "nginx"
[[contestant]]
name = "by sendmmsg"
side = "kernel"
server = "expressway"
io = "udp"
udp_send = "sendmmsg"
[[contestant]]
name = "by copy"
side = "xdp"
server = "expressway"
io = "copy"
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs it to its end."""
    words = [str(word) for word in (BINARY, "--log-level", "error", "bench", *arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, check=False)


def bench(*arguments: str | Path, code: int = 0) -> str:
    """Runs it and gives its output, or what it complained of."""
    result = run(*arguments)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stderr if code == 2 else result.stdout


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw file of a run of a scenario that is no part of the binary, on a machine without peers."""
    folder = tmp_path_factory.mktemp("bench")
    scenario = folder / "trial.toml"
    scenario.write_text(SCENARIO)
    text = bench(scenario, "--out", folder / "out", "--peers", folder / "no-peers")
    assert "| by copy |" in text and "too few rounds" in text
    return folder / "out" / "raw.jsonl"


def lines(raw: Path, kind: str) -> list[dict]:
    """The lines of a kind."""
    return [line[kind] for line in map(json.loads, raw.read_text().splitlines()) if kind in line]


def write(path: Path, raw: Path, factor: float) -> Path:
    """Six rounds made of the one, those by AF_XDP `factor` times as good."""
    out = [{"environment": one} for one in lines(raw, "environment")]
    out += [{"scenario": one} for one in lines(raw, "scenario")]
    for line in lines(raw, "run"):
        for round_number in range(6):
            run = copy.deepcopy(line) | {"round": round_number}
            if run["contestant"] == "by copy":
                run["values"]["gbit_per_cpu_second"] *= factor
            out.append({"run": run})
    path.write_text("".join(json.dumps(line) + "\n" for line in out))
    return path


def test_a_run_is_lines_of_the_raw_file_and_leaves_no_lab(raw: Path) -> None:
    assert [run["contestant"] for run in lines(raw, "run")] == ["by sendmmsg", "by copy"]
    for run in lines(raw, "run"):
        assert run["point"] == {"body": 4096} and run["round"] == 0
        assert run["values"]["gbit_per_cpu_second"] > 0 and run["detail"]["counted"]["requests"] > 0
        assert run["detail"]["server_cpu"]["process_ns"] > 0 and "tx-udp-segmentation" in run["detail"]["server_offloads"]
    (missing,) = lines(raw, "missing")
    assert missing["contestant"] == "nobody" and "nginx: no such program" in missing["reason"]
    (environment,) = lines(raw, "environment")
    assert environment["kernel"] and environment["cpu"] and environment["cores"] > 0
    (scenario,) = lines(raw, "scenario")
    assert scenario["name"] == "trial" and scenario["claim"] == "It runs."
    namespaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert "expressway-bench-" not in namespaces


def test_a_signal_ends_it_and_a_killed_one_is_cleaned_up_after(tmp_path: Path) -> None:
    scenario = tmp_path / "trial.toml"
    scenario.write_text(SCENARIO.replace("rounds = 1", "rounds = 1000"))

    def start(name: str) -> subprocess.Popen[str]:
        words = [BINARY, "bench", scenario, "--out", tmp_path / name, "--peers", tmp_path]
        run = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert run.stderr is not None
        # A run is done, so the next one's lab is there or about to be.
        next(line for line in run.stderr if "round=0" in line)
        return run

    def labs(run: subprocess.Popen[str]) -> list[str]:
        listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.splitlines()
        return [line for line in listed if line.startswith(f"expressway-bench-{run.pid}-")]

    ended = start("ended")
    ended.terminate()
    _, said = ended.communicate(timeout=LIMIT)
    assert ended.returncode == 1 and "interrupted by a signal" in said and not labs(ended)
    killed = start("killed")
    while not labs(killed):
        assert killed.poll() is None
    killed.kill()
    killed.communicate(timeout=LIMIT)
    bench(tmp_path / "trial.toml", "--rounds", "1", "--out", tmp_path / "after", "--peers", tmp_path)
    assert not labs(killed)


def test_envoy_answers_with_whole_bodies(tmp_path: Path) -> None:
    text = SCENARIO.replace('name = "nobody"', 'name = "envoy"').replace('server = "nginx"', 'server = "envoy"')
    (tmp_path / "trial.toml").write_text(text)
    bench(tmp_path / "trial.toml", "--server", "envoy", "--peers", PEERS, "--out", tmp_path)
    (run,) = lines(tmp_path / "raw.jsonl", "run")
    counted = run["detail"]["counted"]
    # Bytes of bodies that were under way when counting began and ended are in it too: of at most 4 connections with 8 requests.
    assert counted["requests"] > 0 and abs(counted["bytes"] / 4096 - counted["requests"]) <= 32
    (environment,) = lines(tmp_path / "raw.jsonl", "environment")
    assert "1.40" in environment["programs"]["envoy"]["version"]
    bench(tmp_path / "trial.toml", "--server", "envoy", "--set", "range=1024", "--peers", PEERS, "--out", tmp_path)
    (missing,) = lines(tmp_path / "raw.jsonl", "missing")
    assert "does not support ranges" in missing["reason"]


def test_reports_are_made_of_the_raw_file_alone(raw: Path, tmp_path: Path) -> None:
    made = {name: (raw.parent / name).read_text() for name in ("report.md", "report.html")}
    bench("report", raw, "--out", tmp_path)
    assert made == {name: (tmp_path / name).read_text() for name in made}
    assert "It runs." in made["report.md"] and "<svg" in made["report.html"]
    assert "no such program" in made["report.md"]


def test_a_leader_is_named_and_a_regression_found(raw: Path, tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", raw, 10.0)
    new = write(tmp_path / "new.jsonl", raw, 5.0)
    bench("report", old, "--out", tmp_path)
    assert "\nOurs leads: 1.\n" in (tmp_path / "report.md").read_text()
    assert "by copy / by sendmmsg</text>" in (tmp_path / "ratios.svg").read_text()
    assert "| worse |" in bench("--compare", old, new, code=1)
    assert "| worse |" not in bench("--compare", new, old)
    changes = json.loads(bench("--compare", old, new, "--json", code=1))
    verdicts = {change["contestant"]: change["verdict"] for change in changes}
    assert verdicts == {"by sendmmsg": "no_change_shown", "by copy": "worse"}


FANOUT = """title = "a feed"
kind = "fanout"
claim = "It is handed on."
measures = "What a delivery costs."
held_equal = ["everything"]
beds = ["lab"]
rounds = 1
seconds = 0.5
warmup = 0.5
[settings]
pattern = "even"
deliveries = 8000
rate = 2000
subscribers = 4
generator = "sleep"
[[contestant]]
name = "a loop"
side = "peer"
forwarder = "send-loop"
[[contestant]]
name = "ours"
side = "kernel"
forwarder = "user"
"""


@pytest.mark.parametrize("scenario", [SCENARIO, FANOUT], ids=["gateway", "fan-out"])
def test_a_profile_is_drawn_of_each_side(tmp_path: Path, scenario: str) -> None:
    # On a machine with other things to do a moment has few samples.
    for seconds in (3, 15):
        (tmp_path / "trial.toml").write_text(scenario.replace("seconds = 0.5", f"seconds = {seconds}"))
        out = tmp_path / f"out-{seconds}"
        result = run(tmp_path / "trial.toml", "--profile", "--out", out, "--peers", tmp_path / "no-peers")
        if seconds == 3 and any(words in result.stderr for words in ("perf recorded no samples", "nothing was delivered")):
            continue
        assert result.returncode == 0, result.stdout + result.stderr
        folder = out / "profiles"
        assert len(list(folder.glob("*.svg"))) == 2 and not list(folder.glob("*.perf"))
        folded = {drawn: drawn.with_suffix(".folded").read_text().splitlines() for drawn in folder.glob("*.svg")}
        if all(any("sendto" in line or "sendm" in line for line in stacks) for stacks in folded.values()):
            break
    else:
        pytest.fail(f"neither side was seen to send: {folded}")
    for drawn, stacks in folded.items():
        assert drawn.read_text().startswith("<svg") and "</svg>" in drawn.read_text()
        assert sum(int(line.rsplit(" ", 1)[1]) for line in stacks) > 3


def test_cores_and_money(raw: Path) -> None:
    arguments = ("--gbps", "10", "--hours", "100", "--core-cost", "0.05", "--utilisation", "50")
    document = json.loads(bench("calculate", raw, *arguments, "--json"))
    need = next(need for need in document["needs"] if need["contestant"] == "by sendmmsg")
    run = next(run for run in lines(raw, "run") if run["contestant"] == "by sendmmsg")
    cores = 10 / run["values"]["gbit_per_cpu_second"] / 0.5
    assert need["cores"] == pytest.approx(cores) and need["cost"] == pytest.approx(cores * 100 * 0.05)
    assert "This assumes" in bench("calculate", raw, *arguments)
    assert "expected a number above 0" in bench("calculate", raw, "--gbps", "0", *arguments[2:], code=2)
    assert "--from" in bench("calculate", raw, *arguments, "--from", "whoever", code=2)


def test_the_list_is_text_or_one_document() -> None:
    names = [line.split()[0] for line in bench("--list").splitlines()]
    assert {"gateway", "idle", "waiting"} <= set(names)
    assert [one["name"] for one in json.loads(bench("--list", "--json"))] == names
    assert [one["name"] for one in json.loads(bench("io", "--list", "--json"))] == ["io-transmit", "io-receive"]


def test_a_bed_has_its_scenarios_and_needs_its_runner(tmp_path: Path) -> None:
    beds = {one["name"]: one["beds"] for one in json.loads(bench("--list", "--json"))}
    assert beds["gateway"] == ["lab", "nics"] and beds["io-transmit"] == ["lab", "guest", "nics"]
    assert beds["instructions-transmit"] == ["guest-icount"]
    error = bench("gateway", "--bed", "guest", "--out", tmp_path, code=2)
    assert "gateway: not for bed guest; it is for lab" in error and len(error.splitlines()) == 1
    error = bench("instructions-transmit", "--out", tmp_path, code=2)
    assert "instructions-transmit: not for bed lab; it is for guest-icount" in error
    error = bench("io-transmit", "--bed", "guest", "--profile", "--out", tmp_path, code=2)
    assert "--profile: perf is not available in a guest" in error and len(error.splitlines()) == 1
    words = [BINARY, "bench", "io-transmit", "--bed", "guest", "--guest", tmp_path, "--out", tmp_path]
    result = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert result.returncode == 1 and f"{tmp_path}: guest runner not found; it is scripts/guest" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("kind = \"gateway\"", "kind = \"gatway\""), "trial.toml:2: kind: `gatway` is not a kind"),
        (("body = [\"4KiB\"]", "body = [\"4 parsecs\"]"), "trial.toml:13: sweep.body: `parsecs` is not a unit"),
        (("io = \"copy\"", "oi = \"copy\""), "trial.toml:28: contestant.2.oi: `oi` is not a parameter"),
        (("beds = [\"lab\"]", ""), "missing field `beds`"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_one_line(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    scenario = tmp_path / "trial.toml"
    scenario.write_text(SCENARIO.replace(*change))
    error = bench(scenario, "--out", tmp_path, code=2)
    assert expected in error and len(error.splitlines()) == 1


def test_what_is_wrong_in_a_raw_file_or_a_request_is_one_line(raw: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(raw.read_text() + "{}\n")
    count = len(broken.read_text().splitlines())
    wrong = {
        f"broken.jsonl:{count}: ": bench("report", broken, "--out", tmp_path, code=2),
        "no scenario `nonsense`": bench("nonsense", code=2),
        "none of the given scenarios has a parameter `nonsense`": bench("gateway", "--set", "nonsense=1", code=2),
        "no contestant `nonsense`": bench("gateway", "--server", "nonsense", code=2),
        "range is 1048576 B of a body of 1024": bench("gateway", "--body", "1KiB", "--set", "range=1MiB", code=2),
    }
    for expected, error in wrong.items():
        assert expected in error and len(error.splitlines()) == 1, error
