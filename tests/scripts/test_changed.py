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
        self.assertIn("--test feed", first[3])
        self.assertIn("tests/e2e/test_fanout_hostile.py", last)
        self.assertNotIn("test_gen", last)

    def test_a_test_leads_to_itself(self) -> None:
        self.assertEqual(changed.plan(["tests/e2e/test_vlan.py"]), ["pytest tests/e2e/test_vlan.py"])
        self.assertIn("--test netio", changed.plan(["crates/netio/tests/it/route_mirror.rs"])[-1].split(" --bins ")[1])
        self.assertEqual(changed.integration("crates/netio/tests/conformance/bed.rs"), {"conformance"})

    def test_what_tests_share_leads_to_them_all(self) -> None:
        self.assertEqual(changed.integration("crates/gateway/tests/support/world.rs"), {"bounds", "gateway", "instructions", "memory"})

    def test_models_of_rings_and_what_strangers_send_have_their_sections(self) -> None:
        self.assertIn("loom", changed.plan(["crates/netio/src/xsk/engine/kick.rs"]))
        self.assertIn("fuzz", changed.plan(["crates/wire/src/lib.rs"]))
        self.assertNotIn("loom", changed.plan(["crates/wire/src/lib.rs"]))
        self.assertNotIn("fuzz", changed.plan(["crates/lab/src/lib.rs"]))

    def test_bpf_programs_and_patches_lead_to_what_runs_them(self) -> None:
        *_, tests, last = changed.plan(["bpf/include/guard_quic.h"])
        self.assertEqual(tests, "cargo-test --lib --bins --test edge --test observe --test xbpf")
        self.assertEqual({name for name in last.split() if "guard" not in name}, {"pytest"})
        self.assertIn("tests/e2e/test_modes.py", changed.plan(["bpf/include/packet.h"])[-1])
        self.assertLessEqual({"audit", "quiche", "fuzz"}, set(changed.plan(["patches/quiche-0.30.0/08-segments-bounded.patch"])))
        self.assertLessEqual({"audit", "sctp", "fuzz"}, set(changed.plan(["patches/sctp-proto-0.10.8/01-peer-bounded.patch"])))

    def test_prose_leads_to_nothing(self) -> None:
        self.assertEqual(changed.plan(["README.md", "docs/reference.md"]), [])

    def test_what_is_named_is_there(self) -> None:
        for key in changed.E2E:
            self.assertTrue((ROOT / "crates" / key).is_dir(), key)
        for key in changed.BPF:
            self.assertTrue(list((ROOT / "bpf").glob(f"{key}*.bpf.c")), key)
        for key, names in [*changed.E2E.items(), *changed.BPF.items()]:
            for name in names:
                self.assertTrue(list((ROOT / "tests/e2e").glob(f"test_{name}.py")), f"{key}: {name}")
        crates = {folder.name for folder in (ROOT / "crates").iterdir() if (folder / "Cargo.toml").exists()}
        self.assertLessEqual(crates, set(changed.E2E))


if __name__ == "__main__":
    unittest.main()
