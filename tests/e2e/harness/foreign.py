"""Somebody else's XDP program."""

import subprocess
from pathlib import Path

from .lab import Lab

PROGRAM = """
__attribute__((section("xdp"), used)) int foreign_pass(void *context) { return 2; }
char _license[] __attribute__((section("license"), used)) = "Dual BSD/GPL";
"""


def build(folder: Path) -> Path:
    """A BPF object with it."""
    source, built = folder / "foreign.c", folder / "foreign.o"
    source.write_text(PROGRAM)
    subprocess.run(["clang", "-O2", "-g", "-target", "bpf", "-c", source, "-o", built], check=True)
    return built


def attach(lab: Lab, built: Path) -> None:
    """Attaches it to the server's interface in native mode, as another tool would."""
    lab.run("server", "ip", "link", "set", "dev", "server0", "xdpdrv", "obj", built, "sec", "xdp")


def detach(lab: Lab) -> None:
    """Takes it off again."""
    lab.run("server", "ip", "link", "set", "dev", "server0", "xdpdrv", "off")
