"""Which part may use which: crates by their manifests, the binary's commands by their paths to the root of the crate.

The layers inside netio are held by crates/netio/tests/it/layers.rs.
"""

import re
import tomllib
import unittest
from collections.abc import Iterator
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


def code(text: str) -> str:
    """A file without comments and without what is compiled for tests alone. By the layout of rustfmt: an item ends with its line, or
    with the bracket at its own indentation."""
    kept = []
    lines = iter(text.splitlines())
    for line in lines:
        bare = line.lstrip()
        if bare.startswith("#[cfg(") and "test" in bare and "not(test" not in bare:
            skip_item(lines)
        elif not bare.startswith("//"):
            kept.append(line.split(" // ")[0])
    return "\n".join(kept)


def skip_item(lines: Iterator[str]) -> None:
    first = next((line for line in lines if not line.lstrip().startswith("#[")), "")
    if first.endswith((";", "}", ",")):
        return
    indentation = len(first) - len(first.lstrip())
    for line in lines:
        if line[indentation : indentation + 1] in ("}", ")") and not line[:indentation].strip():
            return


def split_group(group: str) -> list[str]:
    """What is between the commas of `{…}`, which is opened already; what comes after it is ignored."""
    parts, depth = [""], 0
    for char in group:
        if char == "}" and depth == 0:
            break
        if char == "," and depth == 0:
            parts.append("")
            continue
        depth += {"{": 1, "}": -1}.get(char, 0)
        parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def at_the_root(path: str, levels: int) -> Iterator[str]:
    """The first names of a path, or of those of a group, that stand at the root of the crate; `levels` below it is where the path
    begins."""
    while match := re.match(r"(self|super)::", path):
        path = path[match.end() :]
        levels -= match[1] == "super"
    if path.startswith("{"):
        for part in split_group(path[1:]):
            yield from at_the_root(part, levels)
    elif levels <= 0 and (name := re.match(r"\w+|\*", path)):
        yield name[0]


def targets(text: str, depth: int) -> set[str]:
    """The names at the root of the crate that the code of a module `depth` below it uses by `crate` or `super`. A module within a file
    is taken for the file's: nothing is missed by that."""
    found: set[str] = set()
    for match in re.finditer(r"(?<![\w:])(?:crate::|(?:self::)?(?=super::))", text):
        levels = 0 if match[0] == "crate::" else depth
        found.update(at_the_root(text[match.end() :], levels))
    return found


def used_modules(source: Path) -> dict[str, set[str]]:
    """For each module at the top of a crate, the other names at the root of the crate that its files use."""
    found: dict[str, set[str]] = {}
    for file in source.rglob("*.rs"):
        if file.name.endswith("tests.rs"):
            continue
        path = [part for part in file.relative_to(source).with_suffix("").parts if part != "mod"]
        names = targets(code(file.read_text()), len(path))
        found.setdefault(path[0], set()).update(names - {path[0]})
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
            self.assertNotIn("*", used, f"{module} imports whatever is at the root")
            self.assertLessEqual(used & set(modules), allowed, f"{module} uses another command")
        self.assertIn("args", modules["serve"], "paths are found at all")

    def test_paths_to_the_root_are_found(self) -> None:
        for depth, text, expected in [
            (1, "use crate::serve::Config;", {"serve"}),
            (1, "use crate::serve;", {"serve"}),
            (3, "use crate::{args, serve::{self, Config}, top as screen};", {"args", "serve", "top"}),
            (3, "use crate::{\n    args::Recv,\n    serve::{\n        a::{b, c},\n    },\n    top,\n};", {"args", "serve", "top"}),
            (2, "let config = crate::serve::Config::default();", {"serve"}),
            (2, "fn run(args: &crate::args::Top) -> Box<dyn crate::admin::State> {", {"args", "admin"}),
            (1, "use super::serve::Config;", {"serve"}),
            (2, "use super::serve::Config;", set()),
            (2, "use super::super::serve::Config;", {"serve"}),
            (2, "use super::{super::serve, other::super_serve};", {"serve"}),
            (2, "use self::super::super::serve;", {"serve"}),
            (3, "use super::super::{Config, super::{args, top::flows}};", {"args", "top"}),
            (1, "use super::*;", {"*"}),
            (2, "use super::*;", set()),
            (1, "use expressway_netio::crate_name::serve; use mycrate::serve; use a::super_::serve;", set()),
        ]:
            with self.subTest(text=text):
                self.assertEqual(targets(text, depth), expected)

    def test_comments_and_tests_do_not_count(self) -> None:
        text = """//! [`crate::one`]
use crate::args; // crate::two
#[cfg(test)]
mod tests {
    use crate::three;
    fn f() {
    }
}
#[cfg(all(test, feature = "x"))]
#[path = "four_tests.rs"]
mod four;
#[cfg(test)]
use crate::five;
#[cfg(not(test))]
use crate::top;
"""
        self.assertEqual(targets(code(text), 1), {"args", "top"})


if __name__ == "__main__":
    unittest.main()
