"""Cargo in a tree without what scripts/patched makes."""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Unpatched(unittest.TestCase):
    def test_cargo_says_in_a_line_what_to_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            clone = ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(tree)]
            subprocess.run(clone, check=True, capture_output=True)
            for command in (["build"], ["test", "--no-run"]):
                result = subprocess.run(
                    ["cargo", *command], cwd=tree, capture_output=True, text=True, timeout=60, check=False
                )
                self.assertNotEqual(result.returncode, 0)
                self.assertIn("\nerror: patched/ is missing: run scripts/patched, or make build\n", result.stderr)


if __name__ == "__main__":
    unittest.main()
