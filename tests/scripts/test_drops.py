"""Each reason of a drop has a test that makes it happen: tests/drops.txt against the code."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests/drops.txt"
REASONS = ROOT / "crates/observe/src/drops.rs"
# How a counter of what is dropped is declared: a field of a struct, by itself or with the prefix of its page; a sample's name.
DECLARED = [
    re.compile(r"^ *pub(?:\(\w+\))? ((?:dropped|refused)_\w+): (?:u64|AtomicU64),$", re.MULTILINE),
    re.compile(r"^ *pub(?:\(\w+\))? (\w+_(?:dropped|refused)\w*): AtomicU64,$", re.MULTILINE),
    re.compile(r'^ *(?:Sample::counter\(|\()?"(\w+_(?:dropped|refused)(?:_\w+)?)",', re.MULTILINE),
]
STRUCT = re.compile(r"^ *pub(?:\(\w+\))? struct (\w+)", re.MULTILINE)
# What comes before the names of a struct's counters on the metrics page.
PREFIXES = {
    "Stats": "", "IoStats": "", "Totals": "fanout_", "KernelTotals": "fanout_", "RoomCounters": "relay_", "ReceiverCounters": "relay_receiver_",
    "WebRtcCounters": "relay_webrtc_", "DemuxCounters": "relay_demux_", "HttpCounters": "relay_http_", "MoqCounters": "relay_moq_",
    "BridgeCounters": "relay_bridge_",
}  # fmt: skip
# Counters of processes without a metrics page, by struct and name, and their reasons.
REPORTED = {
    "Counters.dropped_source": "recv/source",
    "Counters.dropped_surplus": "recv/surplus",
    "Counters.dropped_echo": "recv/echo",
    "ReaderStats.dropped_quota": "recv/reader-quota",
    "BroadcastStats.dropped_long": "recv/record",
}
# Counters, or all of a struct, that are no drops, or that reasons have under another name.
OTHERS = {
    "FanoutCounts": "what KernelTotals and Totals publish, as the kernel's maps have it",
    "NetworkStats": "a network of tests that is simulated",
    "RuleStatus.dropped_packets": "a rule's part of xdp/rule and xdp/limit",
    "RuleStatus.dropped_bytes": "likewise",
    "guard_rule_dropped_packets": "likewise",
    "guard_rule_dropped_bytes": "likewise",
    "balance_node_dropped": "a node's part of the balancer's",
    "balance_service_dropped": "a service's part of the balancer's",
    "compressions_refused": "the response is sent as it is",
}
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


def counters() -> set[str]:
    """The counters that reasons name."""
    text = REASONS.read_text().split("\nreasons! {\n")[1].split("\n}\n")[0]
    return set(re.findall(r'^ {8}"[a-z-]+" = "(\w+)"', text, re.MULTILINE))


def declared() -> list[tuple[str, str, str]]:
    """What the code counts as dropped or refused: file, struct ("" for a whole name) and name."""
    found = []
    for file in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        text = file.read_text()
        if file == REASONS or "tests" in file.stem:
            continue
        text = text.split("#[cfg(test)]\nmod ")[0]
        for number, pattern in enumerate(DECLARED):
            for match in pattern.finditer(text):
                structs = [one[1] for one in STRUCT.finditer(text[: match.start()])]
                owner = structs[-1] if structs and number == 0 else ""
                found.append((str(file.relative_to(ROOT)), owner, match[1]))
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

    def test_every_counter_of_drops_is_a_reasons(self) -> None:
        found, used = declared(), set()
        self.assertGreater(len(found), 80)
        for file, owner, name in found:
            own = f"{owner}.{name}" if owner else name
            with self.subTest(f"{file}: {own}"):
                exceptions = [key for key in (owner, own) if key in OTHERS or key in REPORTED]
                if exceptions:
                    used.add(exceptions[0])
                    self.assertIn(REPORTED.get(exceptions[0], reasons()[0]), reasons())
                    continue
                if owner:
                    self.assertIn(owner, PREFIXES, "the prefix of its counters is not known here")
                self.assertIn(PREFIXES.get(owner, "") + name, counters(), "no reason has this counter")
        self.assertEqual(used, set(OTHERS) | set(REPORTED), "exceptions that nothing needs")

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
