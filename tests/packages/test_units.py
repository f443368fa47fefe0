"""Units: systemd understands them, and they may do little."""

import re
from pathlib import Path

import pytest
from conftest import PACKAGING, need, run

UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
# Tenths of `systemd-analyze security`, of 10: those that load XDP programs run as root with a few capabilities.
EXPOSURE = {
    "expressway-agent": 27, "expressway-guard": 25, "expressway-balance": 25, "expressway-forward": 25,
    "expressway": 22, "expressway-fanout": 22, "expressway-relay": 20,
}
XDP = {"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"}
# What each may have.
CAPABILITIES = {
    "expressway-agent": {
        "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_NET_BIND_SERVICE", "CAP_BPF", "CAP_PERFMON", "CAP_IPC_LOCK"
    },
    "expressway-guard": XDP,
    "expressway-balance": XDP,
    "expressway-forward": XDP,
    "expressway": {"CAP_NET_BIND_SERVICE"},
    "expressway-fanout": {"CAP_NET_BIND_SERVICE"},
    "expressway-relay": set(),
}


def keys(unit: Path, key: str) -> list[str]:
    """The values of a key."""
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


def test_there_is_one_for_each() -> None:
    assert {unit.stem for unit in UNITS} == set(EXPOSURE) == set(CAPABILITIES)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_little_is_exposed(unit: Path) -> None:
    run([need("systemd-analyze"), "security", "--offline=true", f"--threshold={EXPOSURE[unit.stem]}", unit])
    assert set(keys(unit, "CapabilityBoundingSet")[0].split()) == CAPABILITIES[unit.stem]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_it(unit: Path, tmp_path: Path) -> None:
    """As an installed unit, whose program is there."""
    program = tmp_path / "expressway"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = unit.read_text().replace("/usr/bin/expressway", str(program))
    copy = tmp_path / unit.name
    # The manual is installed by the package, and not here.
    copy.write_text(re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
    said = run([need("systemd-analyze"), "verify", "--man=no", copy])
    assert str(copy) not in said and unit.name not in said, said
