"""`scripts/changed.py`: a change leads to the tests that concern it, and only to such as exist."""

import importlib.util
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("changed", ROOT / "scripts/changed.py")
assert spec and spec.loader
changed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(changed)


class Changed(unittest.TestCase):
    def test_a_line_of_a_crate_leads_to_its_tests(self) -> None:
        *first, last = changed.plan(["crates/feed/src/fanout/ring.rs"])
        self.assertEqual(first[:3], ["fmt", "scripts", "clippy"])
        self.assertIn("--lib", first[3])
        self.assertIn("tests/e2e/test_fanout_hostile.py", last)
        self.assertNotIn("test_gen", last)

    def test_a_test_leads_to_itself(self) -> None:
        self.assertEqual(changed.plan(["tests/e2e/test_vlan.py"]), ["pytest tests/e2e/test_vlan.py"])
        self.assertIn("--test route_mirror", " ".join(changed.plan(["crates/netio/tests/route_mirror.rs"])))

    def test_prose_leads_to_nothing(self) -> None:
        self.assertEqual(changed.plan(["README.md", "docs/reference.md"]), [])

    def test_what_is_named_is_there(self) -> None:
        for key, names in changed.E2E.items():
            self.assertTrue((ROOT / "crates" / key).is_dir(), key)
            for name in names:
                self.assertTrue(list((ROOT / "tests/e2e").glob(f"test_{name}.py")), f"{key}: {name}")
        crates = {folder.name for folder in (ROOT / "crates").iterdir() if (folder / "Cargo.toml").exists()}
        self.assertLessEqual(crates, set(changed.E2E))


if __name__ == "__main__":
    unittest.main()
