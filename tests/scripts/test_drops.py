"""Each reason of a drop has a test that makes it happen: tests/drops.txt against the code."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests/drops.txt"
REASONS = ROOT / "crates/observe/src/drops.rs"
ITEM = re.compile(r"( *)(?:pub(?:\(\w+\))? )?(?:fn|def|const|static) (\w+)|()([A-Z_]+)\b.* = ")


def reasons() -> list[str]:
    """The reasons in the code, as `layer/name`."""
    found, layer = [], ""
    for line in REASONS.read_text().split("\nreasons! {\n")[1].split("\n}\n")[0].splitlines():
        if opened := re.fullmatch(r" {4}(\w+) \{", line):
            layer = opened[1].lower()
        elif named := re.match(r' {8}"([a-z-]+)"', line):
            found.append(f"{layer}/{named[1]}")
    return found


def entries() -> list[list[str]]:
    """The lines of the list: reason, test or `-`, and what it asserts or why there is none."""
    lines = (line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return [line.split(maxsplit=2) for line in lines]


def items(file: Path) -> dict[str, str]:
    """Functions and constants of a file, each with what stands right above it and all that is indented below."""
    lines = file.read_text().splitlines()
    found: dict[str, str] = {}
    for at, line in enumerate(lines):
        if not (match := ITEM.match(line)):
            continue
        indent, name = match[1] or "", match[2] or match[4]
        first, last = at, at + 1
        while first > 0 and lines[first - 1].strip():
            first -= 1
        while last < len(lines) and (not lines[last].strip() or lines[last].startswith((indent + " ", indent + ")", indent + "]"))):
            last += 1
        found[name] = "\n".join(lines[first:last])
    return found


def told(file: Path, name: str) -> str:
    """A test's text, and that of what it uses from its file."""
    known = items(file)
    body = known[name]
    return "\n".join([body, *(text for other, text in known.items() if other != name and re.search(rf"\b{other}\b", body))])


class Drops(unittest.TestCase):
    def test_every_reason_is_in_the_list_once(self) -> None:
        self.assertGreater(len(reasons()), 70)
        self.assertEqual([entry[0] for entry in entries()], reasons())

    def test_every_test_is_there_and_asserts_its_reason(self) -> None:
        for reason, test, what in entries():
            with self.subTest(reason):
                if test == "-":
                    self.assertTrue(what.endswith("."), "a sentence says why there is none")
                    continue
                path, name = test.split("::")
                self.assertIn(name, items(ROOT / path), test)
                own = items(ROOT / path)[name]
                self.assertTrue("#[test]" in own or name.startswith("test_"), f"{test} is no test")
                self.assertRegex(told(ROOT / path, name), rf"(?<!\w){re.escape(what)}(?!\w)", f"{test} does not name {what}")


if __name__ == "__main__":
    unittest.main()
