"""The independent HTTP/3 clients, run inside the client's namespace. All print the same JSON."""

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .lab import Lab
from .paths import CLIENTS, HOST, LIMIT, PEERS

# The guest has those that need no packages of Python.
CLIENT_NAMES = os.environ.get("EXPRESSWAY_TEST_CLIENTS", "curl aioquic quicgo").split()
assert CLIENT_NAMES, "EXPRESSWAY_TEST_CLIENTS names none"


@dataclass(frozen=True)
class Answer:
    """What one request got."""

    path: str
    range: str
    status: int
    content_range: str
    bytes: int
    sha256: str


def command(name: str, connect: str, certificates: Path, paths: Sequence[str], *more: str) -> list[str]:
    """The command line of a client that asks `connect` for each path."""
    program = {
        "curl": [PEERS / "venv/bin/python", CLIENTS / "curl_get.py"],
        "aioquic": [PEERS / "venv/bin/python", CLIENTS / "aioquic_get.py"],
        "quicgo": [PEERS / "quicgo"],
    }[name]
    flags = ["-connect", connect, "-name", HOST, "-ca", certificates / "ca.pem", "-paths", ",".join(paths), *more]
    return [str(word) for word in [*program, *flags]]


def answers(document: str) -> list[Answer]:
    """The responses in a client's report."""
    found = json.loads(document)["responses"]
    return [
        Answer(r["path"], r.get("range", ""), r["status"], r.get("content_range", ""), r["bytes"], r["sha256"])
        for r in found
    ]


def fetch(
    lab: Lab, name: str, connect: str, certificates: Path, paths: Sequence[str], ranges: Sequence[str] = ()
) -> list[Answer]:
    """Asks for each path whole, and for ranges of the first."""
    more = ["-ranges", ",".join(ranges)] if ranges else []
    return answers(lab.run("client", *command(name, connect, certificates, paths, *more)))


def report(lab: Lab, connect: str, certificates: Path, paths: Sequence[str], *more: str) -> dict:
    """What the quic-go client reports, failure included."""
    line = lab.inside("client", *command("quicgo", connect, certificates, paths, *more))
    result = subprocess.run(line, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
    assert result.stdout, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def start(lab: Lab, connect: str, certificates: Path, paths: Sequence[str], *more: str) -> subprocess.Popen[str]:
    """The quic-go client as a process, with pipes at both ends."""
    line = lab.inside("client", *command("quicgo", connect, certificates, paths, *more))
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(client: subprocess.Popen[str], line: str = "") -> dict:
    """Gives a client its last line of input, and its report."""
    out, err = client.communicate(line, timeout=2 * LIMIT)
    assert out, err
    return json.loads(out.splitlines()[-1])


def sha256(path: Path, span: slice = slice(None)) -> str:
    """The hash of a file, or of a part of it."""
    return hashlib.sha256(path.read_bytes()[span]).hexdigest()
