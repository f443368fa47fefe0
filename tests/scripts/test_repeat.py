"""`scripts/repeat` counts what fails, whoever reports it."""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Fails by another test each time, and not the third time.
SAYS = [
    "FAILED tests/e2e/test_a.py::test_one[x] - assert 1 == 2\nERROR tests/e2e/test_a.py::test_two - OSError",
    "test moq::a_test ... FAILED\ntest crates/a/src/lib.rs - fine (line 3) ... ok\nFAILED tests/e2e/test_a.py::test_one[x] - no",
    "FAIL: test_three (test_b.Case.test_three)",
    "test moq::a_test ... ok",
    "killed",
]


class Repeat(unittest.TestCase):
    def repeat(self, times: int, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([ROOT / "scripts/repeat", *words, str(times), "bash", "-c", self.script], capture_output=True, text=True)

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        (Path(folder.name) / "n").write_text("0")
        cases = "\n".join(f"{number}) printf '%s\\n' '{words}'; exit {int('ok' not in words[-3:])} ;;" for number, words in enumerate(SAYS))
        self.script = f"cd {folder.name}; n=$(<n); echo $((n+1)) >n; case $n in\n{cases}\nesac"

    def test_failures_are_counted_by_test(self) -> None:
        found = self.repeat(5, "--beside")
        self.assertEqual(found.returncode, 1, found.stderr)
        self.assertIn("1 of 5 runs without a failure", found.stdout)
        rows = dict(line.strip("| ").split(" | ")[::-1] for line in found.stdout.splitlines() if line.startswith("| ") and " of " in line)
        once = ["tests/e2e/test_a.py::test_two", "moq::a_test", "test_three (test_b.Case.test_three)", "exit code 1"]
        self.assertEqual(rows, {"tests/e2e/test_a.py::test_one[x]": "2 of 5", **dict.fromkeys(once, "1 of 5")})

    def test_what_never_fails_is_no_failure(self) -> None:
        self.script = "true"
        found = self.repeat(2)
        self.assertEqual((found.returncode, found.stderr), (0, ""))
        self.assertIn("2 of 2 runs without a failure", found.stdout)
        self.assertNotIn("|", found.stdout)


if __name__ == "__main__":
    unittest.main()
