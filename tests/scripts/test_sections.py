"""`scripts/test` itself: every section runs and is reported, whatever became of those before. Its programs are stubs."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "test"

# Notes how it was called, speaks in two parts, and fails or hangs where the test wants it to.
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
echo "first $*"
case "$(basename "$0") $*" in $HANGS) echo "hanging $$" >>"$CALLS"; exec sleep 600;; $FAILS) exit 101;; esac
sleep 0.02
echo "last $*"
"""

# A cargo whose builds have a warning.
LINTED = """#!/bin/sh
echo "cargo $*" >>"$CALLS"
[ "$CLIPPY_ARGS" != -D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ ]
"""


class Sections(unittest.TestCase):
    """A copy of the script with stubs for all that it starts."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "fuzz").mkdir()
        self.calls = self.folder / "calls"
        for stub in (".cargo/bin/cargo", ".cargo/bin/rustc", ".cargo/bin/python3", "scripts/patched", "scripts/peers",
                     "target/peers/venv/bin/python"):
            path = self.folder / stub
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(STUB)
            path.chmod(0o755)
        shutil.copy(SCRIPT, self.folder / "scripts/test")

    def start(self, *sections: str, fails: str = "-", hangs: str = "-") -> subprocess.Popen[str]:
        """Starts it; calls that match `fails` do, `hangs` hang."""
        environment = {**os.environ, "HOME": str(self.folder), "CALLS": str(self.calls), "FAILS": fails, "HANGS": hangs}
        environment.pop("CARGO_TARGET_DIR", None)
        script = self.folder / "scripts/test"
        # What runs in the background of a shell ignores SIGINT, and a shell cannot trap what it was started to ignore.
        return subprocess.Popen([script, *sections], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=environment, start_new_session=True,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def run_sections(self, *sections: str, fails: str = "-") -> tuple[int, dict[str, str], str]:
        """Exit code, what the report says by section, and what was called."""
        process = self.start(*sections, fails=fails)
        said, _ = process.communicate(timeout=60)
        return process.returncode, self.report(said), self.calls.read_text()

    def report(self, said: str) -> dict[str, str]:
        """The lines behind `=== sections`, without seconds of the clock and of CPU."""
        lines = said.split("=== sections\n")[1].splitlines()
        words = {line.split()[0]: line.split()[1:] for line in lines}
        seconds = re.compile(r"\d+ s( +\d+ s CPU)? *")
        return {name: seconds.sub("", " ".join(rest), count=1) for name, rest in words.items()}

    def all_sections(self) -> list[str]:
        """All that run when none is named: those of the list before `benchmarks`."""
        names = subprocess.run([SCRIPT, "--list"], capture_output=True, text=True, check=True).stdout.split()
        return names[: names.index("benchmarks")]

    def test_all_run_and_are_well(self) -> None:
        code, report, _ = self.run_sections()
        self.assertEqual(code, 0)
        self.assertEqual(report, {**dict.fromkeys(self.all_sections(), "ok"), "total": ""})

    def test_what_ci_runs_has_all_and_the_longer_guests(self) -> None:
        code, report, calls = self.run_sections("--ci")
        self.assertEqual(code, 0)
        wanted = set(self.all_sections()) - {"guest"} | {"virtio", "beside", "guest_bench"}
        self.assertEqual(report, {**dict.fromkeys(wanted, "ok"), "total": ""})
        # Of the section `guest` nothing is missing.
        self.assertIn("python3 tests/guest virtio-more", calls)
        self.assertIn("tests/guest/test_runner.py", calls)

    def test_one_that_fails_does_not_keep_the_later_ones_from_running(self) -> None:
        code, report, calls = self.run_sections(fails="cargo doc*")
        self.assertEqual(code, 1)
        self.assertEqual(report.pop("doc"), "failed")
        self.assertEqual(set(report.values()), {"ok", ""})
        self.assertIn("-m pytest tests/e2e", calls)

    def test_what_needs_a_failed_section_is_not_run(self) -> None:
        code, report, calls = self.run_sections(fails="cargo build*")
        self.assertEqual(code, 1)
        self.assertEqual(report["clippy"], "failed")
        self.assertEqual(report["e2e"], "not run: clippy failed")
        self.assertEqual(report["guest"], "not run: clippy failed")
        self.assertNotIn("pytest", calls)
        # It is built without lints before anything is given up.
        self.assertEqual(calls.count("cargo build --locked --workspace --all-targets"), 2)
        # Named alone it takes the binary that there is.
        self.assertEqual(self.run_sections("e2e", fails="cargo build*")[0], 0)

    def test_a_warning_fails_clippy_alone(self) -> None:
        (self.folder / ".cargo/bin/cargo").write_text(LINTED)
        code, report, calls = self.run_sections("clippy", "unit", "e2e", "guest")
        self.assertEqual(code, 1)
        self.assertEqual(report, {"clippy": "failed", "unit": "ok", "e2e": "ok", "guest": "ok", "total": ""})
        self.assertIn("-m pytest tests/e2e", calls)

    def test_what_another_lane_makes_is_waited_for_whichever_is_named_first(self) -> None:
        for sections in (("drivers", "build", "doc"), ("drivers", "build")):
            code, report, calls = self.run_sections(*sections)
            self.assertEqual((code, set(report.values())), (0, {"ok", ""}))
            self.assertLess(calls.index("cargo build --profile gate"), calls.index("python3 tests/guest igb"))
            self.calls.unlink()
        self.assertEqual(self.run_sections("beside", "clippy")[0], 0)
        calls = self.calls.read_text()
        self.assertLess(calls.index("cargo build --locked --workspace --all-targets"), calls.index("python3 tests/guest beside"))

    def test_a_step_that_fails_fails_its_section(self) -> None:
        # The first of several steps, behind which others are well.
        code, report, calls = self.run_sections("guest", fails="python3 tests/guest*")
        self.assertEqual((code, report["guest"]), (1, "failed"))
        self.assertIn("tests/guest/test_runner.py", calls)
        # Without the peers there is nothing to run.
        self.assertEqual(self.run_sections("e2e", fails="peers caddy envoy")[1]["e2e"], "failed")

    def test_no_test_is_left_out_because_another_failed(self) -> None:
        _, _, calls = self.run_sections()
        tests = [line for line in calls.splitlines() if line.startswith("cargo test") and "--test " not in line]
        self.assertEqual(len(tests), 5)
        for line in tests:
            self.assertIn("--no-fail-fast", line)
        for line in (line for line in calls.splitlines() if "pytest" in line):
            self.assertNotRegex(line, r" -x\b|--exitfirst|--maxfail")

    def interrupted(self, *sections: str, hanging: int) -> dict[str, str]:
        """The report of a run that is interrupted when so many of its programs hang, of which nothing stays."""
        process = self.start(*sections, hangs="python*")
        deadline = time.monotonic() + 60
        while not self.calls.exists() or self.calls.read_text().count("hanging ") < hanging:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        # As a terminal does: to the whole foreground group.
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        for line in self.calls.read_text().splitlines():
            if line.startswith("hanging "):
                self.assertFalse(Path("/proc", line.split()[1]).exists(), line)
        return self.report(said)

    def test_an_interrupted_run_says_how_far_it_came(self) -> None:
        report = self.interrupted("fmt", "audit", "doc", hanging=1)
        self.assertEqual(report, {"fmt": "ok", "audit": "interrupted", "total": ""})

    def test_both_lanes_end_when_they_are_interrupted(self) -> None:
        report = self.interrupted("fmt", "audit", "doc", "clippy", "e2e", "guest", hanging=2)
        self.assertEqual(report, {"fmt": "ok", "audit": "interrupted", "clippy": "ok", "e2e": "interrupted", "total": ""})

    def test_what_sections_of_two_lanes_say_is_not_mixed(self) -> None:
        process = self.start(fails="cargo doc*")
        said, _ = process.communicate(timeout=60)
        self.assertIn("=== doc\nfirst doc", said)
        parts = {part.split("\n")[0]: part.splitlines()[1:] for part in said.split("=== ")[1:]}
        self.assertEqual(sorted(parts), sorted([*self.all_sections(), "sections"]))
        for name, lines in parts.items():
            if name not in ("doc", "sections"):
                firsts, lasts = (lines[at::2] for at in (0, 1))
                self.assertTrue(lines, name)
                self.assertEqual([line.removeprefix("first ") for line in firsts], [line.removeprefix("last ") for line in lasts])

    def test_a_section_that_is_not_there_is_named(self) -> None:
        process = self.start("e2e", "nowhere")
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 2)
        self.assertIn("no section named 'nowhere'", said)


if __name__ == "__main__":
    unittest.main()
