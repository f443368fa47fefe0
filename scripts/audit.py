#!/usr/bin/env python3
"""Checks licences and duplicate versions of everything that the workspace and the fuzz crate link.

Reads `cargo metadata` only: no network, nothing to install. Fails on a licence that is not allowed, on two
versions of one crate that nobody gave a reason for, on a source other than the registry, and on an exception
that is no longer needed, so that the lists below stay true.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# SPDX identifiers that may be linked into a binary distributed under Apache-2.0 OR MIT.
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}

# Crate: the licence it may have besides, and why that is acceptable.
LICENCE_EXCEPTIONS: dict[str, tuple[str, str]] = {}

# Crate: why more than one version of it is linked.
DUPLICATES: dict[str, str] = {
    "base64": "0.22 by instant-acme, 0.23 by pem (rcgen)",
    "getrandom": "0.2 by ring, 0.3 by rand 0.9 (dimpl, sctp-proto), 0.4 by rand and tempfile",
    "itertools": "0.13 by bindgen in build scripts only, 0.14 by ratatui",
    "nom": "7 by pcap-parser, 8 by dimpl",
    "rand": "0.9 by dimpl and sctp-proto, 0.10 by proptest in tests",
    "rand_core": "the same",
    "shlex": "build scripts only: 1 by bindgen, 2 by cc",
    "signal-hook": "0.3 by crossterm, 0.4 by the binary",
    "thiserror": "1 by filedescriptor (crossterm), 2 by the others",
    "thiserror-impl": "the same",
    "syn": "procedural macros only: 2 by tracing and bindgen, 3 by serde",
}

TOKEN = re.compile(r"\(|\)|[A-Za-z0-9.+-]+")


def satisfied(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be met by allowed licences alone. `/` is the old way to write OR."""
    tokens = TOKEN.findall(expression.replace("/", " OR "))
    position = 0

    def peek() -> str | None:
        return tokens[position] if position < len(tokens) else None

    def term() -> bool:
        nonlocal position
        token = peek()
        if token is None:
            raise ValueError(f"licence expression ends early: {expression!r}")
        position += 1
        if token == "(":
            value = either()
            if peek() != ")":
                raise ValueError(f"licence expression lacks a parenthesis: {expression!r}")
            position += 1
            return value
        if peek() == "WITH":
            token = f"{token} WITH {tokens[position + 1]}"
            position += 2
        return token in allowed

    def both() -> bool:
        nonlocal position
        value = term()
        while peek() == "AND":
            position += 1
            value = term() and value
        return value

    def either() -> bool:
        nonlocal position
        value = both()
        while peek() == "OR":
            position += 1
            value = both() or value
        return value

    value = either()
    if peek() is not None:
        raise ValueError(f"licence expression goes on: {expression!r}")
    return value


def packages(manifest: Path) -> list[dict]:
    """The packages that a manifest resolves to on Linux."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--all-features",
               "--filter-platform=x86_64-unknown-linux-gnu", f"--manifest-path={manifest}"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"audit: cargo metadata of {manifest} failed: its message is above")
    metadata = json.loads(result.stdout)
    used = {node["id"] for node in metadata["resolve"]["nodes"]}
    return [package for package in metadata["packages"] if package["id"] in used]


def check(found: list[dict]) -> list[str]:
    """The complaints about these packages."""
    complaints = []
    versions = defaultdict(set)
    excepted = set()
    for package in found:
        name, version, licence = package["name"], package["version"], package["license"]
        source = package["source"]
        if source is not None:
            versions[name].add(version)
            if not source.startswith("registry+"):
                complaints.append(f"{name} {version} comes from {source}, not from the registry")
        if not licence:
            complaints.append(f"{name} {version} states no licence")
            continue
        if satisfied(licence, ALLOWED):
            continue
        extra = LICENCE_EXCEPTIONS.get(name, ("", ""))[0]
        excepted.add(name)
        if not satisfied(licence, ALLOWED | {extra}):
            complaints.append(f"{name} {version}: licence {licence!r} is not allowed")
    several = {name: sorted(found) for name, found in versions.items() if len(found) > 1}
    for name, found_versions in sorted(several.items()):
        if name not in DUPLICATES:
            complaints.append(f"{name} is linked in {len(found_versions)} versions: {', '.join(found_versions)}")
    complaints += [f"no need to except {name} from the licences" for name in LICENCE_EXCEPTIONS.keys() - excepted]
    complaints += [f"no need to tolerate versions of {name}" for name in DUPLICATES.keys() - several.keys()]
    return complaints


def main() -> None:
    manifests = [ROOT / "Cargo.toml", ROOT / "fuzz" / "Cargo.toml"]
    found = {}
    for manifest in manifests:
        if manifest.exists():
            found |= {package["id"]: package for package in packages(manifest)}
    complaints = check(list(found.values()))
    for complaint in complaints:
        print(f"audit: {complaint}", file=sys.stderr)
    print(f"audit: {len(found)} packages, {len(DUPLICATES)} tolerated duplicates, {len(complaints)} complaints")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
