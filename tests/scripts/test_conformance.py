"""`scripts/conformance.py`: the page is made of what is committed."""

import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Page(unittest.TestCase):
    def test_the_page_is_up_to_date(self) -> None:
        command = [sys.executable, ROOT / "scripts/conformance.py", "table", "--check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
