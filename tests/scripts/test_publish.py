"""Published crates: complete manifests, and nothing among their dependencies that is not published."""

import re
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKSPACE = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
# Those that others use; what they are built on is published with them.
FOR_OTHERS = {"wire", "netio", "dataplane", "feed"}


def manifests() -> dict[str, dict]:
    """Of crates that are published, by their folders."""
    found = {}
    for file in (ROOT / "crates").glob("*/Cargo.toml"):
        manifest = tomllib.loads(file.read_text())
        if manifest["package"]["publish"] is True:
            found[file.parent.name] = manifest
    return found


class Published(unittest.TestCase):
    """What crates.io asks for, and semantic versions need."""

    def test_those_for_others_are(self) -> None:
        self.assertLessEqual(FOR_OTHERS, set(manifests()))

    def test_they_use_published_crates_only(self) -> None:
        published = {f"expressway-{name}" for name in manifests()}
        for name, manifest in manifests().items():
            for table in ("dependencies", "build-dependencies"):
                used = {used for used in manifest.get(table, {}) if used.startswith("expressway-")}
                self.assertLessEqual(used, published, f"{name}: {table}")

    def test_their_versions_are_the_programs(self) -> None:
        version = WORKSPACE["package"]["version"]
        for name in manifests():
            used = WORKSPACE["dependencies"][f"expressway-{name}"]
            self.assertEqual(used.get("version"), version, f"{name}: without it no package can depend on it")

    def test_what_is_not_published_has_no_version(self) -> None:
        """So that Cargo leaves it out where only tests use it."""
        for name, used in WORKSPACE["dependencies"].items():
            folder = name.removeprefix("expressway-")
            if isinstance(used, dict) and "path" in used and folder not in manifests():
                self.assertNotIn("version", used, name)

    def test_all_of_a_manifest_is_there(self) -> None:
        for name, manifest in manifests().items():
            package = manifest["package"]
            self.assertTrue(package["description"].endswith("."), name)
            for key in ("version", "edition", "rust-version", "license", "repository"):
                self.assertEqual(package[key], {"workspace": True}, f"{name}: {key}")

    def test_no_file_is_read_from_outside(self) -> None:
        """A package has the crate's folder alone."""
        for name in manifests():
            crate = ROOT / "crates" / name
            for file in [*crate.glob("src/**/*.rs"), *crate.glob("build.rs")]:
                for path in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)|\.join\("(\.\./[^"]*)"\)', file.read_text()):
                    target = (file.parent / (path[0] or path[1])).resolve()
                    self.assertTrue(target.is_relative_to(crate), f"{file}: {path}")

    def test_the_ones_for_others_have_examples(self) -> None:
        for name in FOR_OTHERS - {"wire"}:
            self.assertTrue(list((ROOT / "crates" / name / "examples").glob("*.rs")), name)
        self.assertIn("//! ```", (ROOT / "crates/wire/src/lib.rs").read_text())


if __name__ == "__main__":
    unittest.main()
