"""Which part may use which: crates by their manifests, the binary's commands by their `crate::` paths.

The layers inside netio are held by crates/netio/tests/it/layers.rs.
"""

import re
import tomllib
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A crate may use those on lines above its own.
LAYERS = [
    {"metrics", "wire", "sequence", "h3", "settings", "lab"},
    {"keys", "pcap", "tls", "web"},
    {"xbpf", "netio", "bench", "acme", "origin", "cache"},
    {"agent", "edge", "gateway", "feed", "observe", "tcp"},
    {"dataplane"},
    {"relay"},
    {"load", "expressway"},
]
# What the binary's commands share; the rest of its modules are commands, and no command uses another.
SHARED = {"admin", "args", "cores", "daemon", "fail", "limits", "logging", "metrics", "notify", "screen", "signals"}


def dependencies(crate: Path) -> set[str]:
    """The crates of this workspace that a crate is built with."""
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    tables = [manifest, *manifest.get("target", {}).values()]
    names = {name for table in tables for name in table.get("dependencies", {})}
    return {name.removeprefix("expressway-") for name in names if name.startswith("expressway-")}


def used_modules(source: Path) -> dict[str, set[str]]:
    """For each module at the top of a crate, the others that its files name by `crate::`."""
    found: dict[str, set[str]] = {}
    for file in source.rglob("*.rs"):
        module = file.relative_to(source).parts[0].removesuffix(".rs")
        names = re.findall(r"\bcrate::([a-z_]+)::", file.read_text())
        found.setdefault(module, set()).update(name for name in names if name != module)
    return found


class Direction(unittest.TestCase):
    """Nothing uses what stands above it."""

    def test_crates(self) -> None:
        place = {name: index for index, layer in enumerate(LAYERS) for name in layer}
        crates = [folder for folder in (ROOT / "crates").iterdir() if (folder / "Cargo.toml").exists()]
        self.assertEqual(set(place), {folder.name for folder in crates}, "each crate has its place in LAYERS")
        for folder in crates:
            for used in dependencies(folder):
                self.assertLess(place[used], place[folder.name], f"{folder.name} uses {used}")

    def test_commands_of_the_binary(self) -> None:
        modules = used_modules(ROOT / "crates/expressway/src")
        for module, used in modules.items():
            if module == "main":
                continue
            allowed = SHARED if module not in SHARED else SHARED - {module}
            self.assertLessEqual(used & set(modules), allowed, f"{module} uses another command")
        self.assertIn("args", modules["serve"], "paths are found at all")


if __name__ == "__main__":
    unittest.main()
