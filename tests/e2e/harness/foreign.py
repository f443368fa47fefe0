"""Somebody else's XDP program."""

from pathlib import Path

from .lab import Lab
from .paths import PEERS

# tests/peers/foreign.bpf.c, which passes everything.
BUILT = PEERS / "foreign.o"


def attach(lab: Lab, built: Path) -> None:
    """Attaches it to the server's interface in native mode, as another tool would."""
    lab.run("server", "ip", "link", "set", "dev", "server0", "xdpdrv", "obj", built, "sec", "xdp")


def detach(lab: Lab) -> None:
    """Takes it off again."""
    lab.run("server", "ip", "link", "set", "dev", "server0", "xdpdrv", "off")
