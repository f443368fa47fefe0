#!/usr/bin/env python3
"""What of `make test` concerns the files that changed, for `scripts/test --changed`.

    scripts/changed.py [REF]    files that differ from REF (default HEAD), and new ones

Prints one line for each command to run: a section of scripts/test, `cargo-test ARGUMENTS`, or `pytest FILES`.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The end-to-end tests that a change of a crate, or of a folder in the binary, shows in first. What else uses it is left to the
# whole run.
E2E = {
    "acme": ["acme"],
    "agent": ["agent*", "privilege"],
    "bench": ["bench*", "fanout_auto"],
    "cache": ["cache"],
    "dataplane": ["modes", "beside", "interfaces", "agent", "doctor"],
    "edge": ["guard", "forward", "balance*", "beside_edge", "edge_oracles"],
    "edge/src/balance": ["balance*"],
    "edge/src/forward": ["forward"],
    "edge/src/guard": ["guard*"],
    "feed/src/fanout": ["fanout*"],
    "feed/src/generate": ["gen"],
    "feed/src/receive": ["recv"],
    "feed": ["recv", "gen", "fanout"],
    "gateway": ["fetch", "faults", "hostile*", "operation"],
    "gateway/src/admin": ["admin_access", "admin_hostile", "dashboard", "operation"],
    "h3": ["fetch", "hostile_codes"],
    "keys": ["keys"],
    "lab": ["fetch"],
    "load": ["bench*"],
    "metrics": ["operation", "dashboard"],
    "netio": ["modes", "fetch", "recv", "gen", "faults", "vlan"],
    "observe": ["dump"],
    "origin": ["origin", "cache"],
    "pcap": ["dump", "gen"],
    "relay": ["relay*", "moq*"],
    "sequence": ["sequence", "recv"],
    "tcp": ["tcp", "hostile"],
    "settings": ["operation"],
    "settings/src/admin": ["admin_access", "operation"],
    "tls": ["tls", "acme", "fanout_protocols"],
    "web": ["sites", "fetch", "records"],
    "wire": ["fetch", "vlan", "gen"],
    "xbpf": ["drop", "fanout_kernel", "guard*", "forward", "balance*", "beside", "modes"],
    "expressway/src/bench": ["bench*"],
    "expressway/src/doctor": ["doctor"],
    "expressway/src/balance": ["balance*"],
    "expressway/src/drop": ["drop"],
    "expressway/src/dump": ["dump"],
    "expressway/src/fanout": ["fanout*"],
    "expressway/src/forward": ["forward"],
    "expressway/src/generate": ["gen"],
    "expressway/src/guard": ["guard*"],
    "expressway/src/recv": ["recv", "sequence", "lend"],
    "expressway/src/relay": ["relay"],
    "expressway/src/serve": ["operation", "privilege", "limits", "workers", "tcp", "tls", "origin", "cache"],
    "expressway": ["operation", "doctor"],
}

# The same for a BPF source, or a header that one of them has for itself, by how its name begins.
BPF = {
    "balance": ["balance*", "beside_edge"],
    "baseline": ["bench_packets"],
    "capture": ["dump*", "guard_capture"],
    "dispatcher": ["beside", "beside_edge"],
    "fanout": ["fanout_kernel"],
    "flow": ["top_flows"],
    "forward": ["forward", "edge_oracles"],
    "guard": ["guard*"],
    "live": ["drop", "top_flows"],
    "redirect": ["modes", "recv", "beside"],
    "sockets": ["top_screen", "xdp_reasons"],
}


def changed(ref: str) -> list[str]:
    """Paths in the repository that differ from a commit, or are new."""
    def git(*words: str) -> list[str]:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.split("\n")

    return sorted({path for path in git("diff", "--name-only", ref) + git("ls-files", "--others", "--exclude-standard") if path})


def nearest(path: str) -> list[str]:
    """The end-to-end tests of the longest key in E2E that a path under crates/ is below."""
    inside = path.removeprefix("crates/")
    keys = [key for key in E2E if inside.startswith(key + "/")]
    return E2E[max(keys, key=len)] if keys else []


def targets(crate: str) -> set[str]:
    """The integration tests of a crate, as cargo names them; those of tests/it are one, which has the crate's name."""
    folder = ROOT / "crates" / crate / "tests"
    names = {file.stem for file in folder.glob("*.rs")} | {main.parent.name for main in folder.glob("*/main.rs")}
    return {crate if name == "it" else name for name in names}


def integration(path: str) -> set[str]:
    """The integration tests that a file in a crate's folder `tests` is a part of: its own, or all for what they share."""
    _, crate, _, first, *_ = Path(path).parts
    own = crate if first == "it" else Path(first).stem
    return {own} & targets(crate) or targets(crate)


def fuzzed() -> set[str]:
    """The crates that fuzz targets reach."""
    return set(re.findall(r'path = "\.\./crates/(\w+)"', (ROOT / "fuzz/Cargo.toml").read_text()))


def bpf(name: str) -> list[str]:
    """The end-to-end tests of the key in BPF that the name of a BPF source begins with; a header that many include has all."""
    keys = [key for key in BPF if name.startswith(key)]
    return BPF[max(keys, key=len)] if keys else E2E["xbpf"]


def plan(paths: Iterable[str]) -> list[str]:
    """The commands, cheapest first."""
    sections, tests, e2e = set(), set(), set()
    libraries = False
    for path in paths:
        parts = Path(path).parts
        if path.startswith(("scripts/", "tests/scripts/", "tests/drops.txt")):
            sections.add("scripts")
        if path.startswith(("packaging/", "tests/packages/", "scripts/package")):
            sections.add("packages")
        if path.startswith("crates/") or path in ("Cargo.toml", "Cargo.lock"):
            sections |= {"fmt", "clippy", "scripts"}
            libraries = True
        if path.endswith(("Cargo.toml", "Cargo.lock")) or path.startswith("patches/"):
            sections.add("audit")
        if path.startswith("crates/") and path.endswith(".rs") and len(parts) > 2:
            if parts[2] == "tests":
                tests |= integration(path)
            else:
                tests |= targets(parts[1])
                e2e |= set(nearest(path))
                if parts[1] in fuzzed():
                    sections.add("fuzz")
            if parts[1] in ("netio", "feed") and "loom" in (ROOT / path).read_text(errors="ignore"):
                sections.add("loom")
        if path.startswith("bpf/"):
            libraries = True
            tests |= targets("xbpf") | targets("edge") | targets("observe")
            e2e |= set(bpf(parts[-1]))
        if path.startswith("patches/quiche-"):
            sections |= {"quiche", "fuzz"}
            e2e |= set(E2E["gateway"])
            tests |= targets("gateway")
        elif path.startswith(("patches/sctp-proto-", "patches/str0m-")):
            sections |= {"sctp", "fuzz"}
            e2e |= set(E2E["relay"])
            tests |= targets("relay")
        elif path.startswith("patches/"):
            tests |= targets("xbpf")
        if path.startswith("fuzz/"):
            sections.add("fuzz")
        if path.startswith("tests/nginx_semantics/"):
            tests |= targets("web")
        if path.startswith("tests/conformance/"):
            e2e.add("cache_suite")
        if path.startswith("tests/e2e/test_"):
            e2e.add(Path(path).stem.removeprefix("test_"))
        elif path.startswith(("tests/e2e/", "tests/peers/")):
            e2e |= {"fetch", "recv", "fanout", "agent"}
        if path.startswith(("tests/guest/", "scripts/guest/")):
            sections.add("guest")
    order = ["fmt", "audit", "scripts", "clippy", "loom", "quiche", "sctp", "fuzz", "guest", "packages"]
    commands = [name for name in order if name in sections]
    if libraries or tests:
        named = [f"--test {name}" for name in sorted(tests)]
        commands.insert(len([name for name in commands if name in order[:4]]), " ".join(["cargo-test", "--lib --bins", *named]))
    files = sorted({str(file.relative_to(ROOT)) for name in e2e for file in (ROOT / "tests/e2e").glob(f"test_{name}.py")})
    if files:
        commands.append(" ".join(["pytest", *files]))
    return commands


if __name__ == "__main__":
    print("\n".join(plan(changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))))
