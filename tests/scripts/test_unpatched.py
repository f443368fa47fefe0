"""Cargo in a tree without what scripts/patched makes."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Unpatched(unittest.TestCase):
    def test_cargo_says_in_a_line_what_to_run(self) -> None:
        # Whoever shares artefacts with scripts/test has another wrapper in place of the one that says it.
        environment = {name: value for name, value in os.environ.items() if name != "RUSTC_WORKSPACE_WRAPPER"}
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            clone = ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(tree)]
            subprocess.run(clone, check=True, capture_output=True)
            for command in (["build"], ["test", "--no-run"]):
                result = subprocess.run(
                    ["cargo", *command], cwd=tree, env=environment, capture_output=True, text=True, timeout=60, check=False
                )
                self.assertNotEqual(result.returncode, 0)
                self.assertIn("\nerror: patched/ is missing: run scripts/patched, or make build\n", result.stderr)


if __name__ == "__main__":
    unittest.main()
