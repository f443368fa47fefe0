#!/usr/bin/env python3
"""Serves a real video clip over HTTP/3 in every I/O mode of this machine, and prints one table.

Everything happens in a lab of two network namespaces, which is removed at the end. curl (of curl_cffi:
ngtcp2, nothing of ours) fetches the clip whole and in ranges and compares hashes; then it fetches a longer
edition several times, which gives the figures. They are indicative: one client, one connection, a few
seconds a mode. `make bench` measures.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

if TYPE_CHECKING:
    from harness.lab import Lab
    from harness.server import Server

# The clip this often in a row is what the figures are taken from: some 170 MB.
REPEATS = 160

RANGES = {"0-65535": slice(0, 65536), "300000-": slice(300_000, None), "-1000": slice(-1000, None)}

# What is asked: mode, and how the kernel sends.
WAYS = [
    ("udp", "sendmsg"),
    ("udp", "sendmmsg"),
    ("udp", "gso"),
    ("generic", "gso"),
    ("copy", "gso"),
    ("hybrid", "gso"),
    ("zerocopy", "gso"),
    ("auto", "gso"),
]


@dataclass
class Row:
    """One line of the table."""

    asked: str
    obtained: str
    bytes: int = 0
    gbits: float = 0.0
    cpu_per_gb: float = 0.0
    packets: int = 0
    packet: float = 0.0
    drops: str = ""


def napi_threads() -> set[Path]:
    """The kernel threads that do the receive work of lab servers."""
    threads = set()
    for name in Path("/proc").glob("[0-9]*/comm"):
        try:
            if name.read_text().startswith("napi/server0-"):
                threads.add(name.parent)
        except OSError:
            continue  # ended meanwhile
    return threads


def cpu_seconds(server: "Server", napi: set[Path]) -> float:
    """CPU time of a server's threads and of the kernel threads that receive for it."""
    tasks = list(Path(f"/proc/{server.process.pid}/task").iterdir()) + sorted(napi)
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def get(lab: "Lab", connect: str, folder: Path, paths: list[str], ranges: list[str]) -> list[dict]:
    """Fetches by curl."""
    from harness import clients

    more = ["-ranges", ",".join(ranges)] if ranges else []
    return json.loads(lab.run("client", *clients.command("curl", connect, folder, paths, *more)))["responses"]


def check(lab: "Lab", connect: str, folder: Path, clip: Path) -> None:
    """The clip whole and in ranges is the clip."""
    from harness.clients import sha256

    whole, *parts = get(lab, connect, folder, ["/clip.mp4"], list(RANGES))
    wanted = [(200, sha256(clip))] + [(206, sha256(clip, span)) for span in RANGES.values()]
    if [(answer["status"], answer["sha256"]) for answer in (whole, *parts)] != wanted:
        sys.exit(f"demo: the clip arrived corrupted: {whole}, {parts}")


def measure(server: "Server", connect: str, folder: Path, napi: set[Path], row: Row) -> None:
    """Fetches the clip again and again, and fills the row."""
    before, cpu = server.metrics(), cpu_seconds(server, napi)
    answers = get(server.lab, connect, folder, ["/clip.mp4"] * REPEATS, [])
    cpu = cpu_seconds(server, napi) - cpu
    row.bytes = sum(answer["bytes"] for answer in answers)
    responses = before.sum("responses_complete_total") + REPEATS
    after = server.wait_for("all counted", lambda m: m.sum("responses_complete_total") >= responses)

    def grown(*names: str) -> int:
        return sum(after.sum(name) - before.sum(name) for name in names)

    row.packets = grown("tx_xsk_packets_total", "tx_kernel_packets_total")
    row.packet = grown("tx_xsk_bytes_total", "tx_kernel_bytes_total") / row.packets
    row.gbits = row.bytes * 8 / 1e9 / sum(answer["seconds"] for answer in answers)
    row.cpu_per_gb = cpu / (row.bytes / 1e9)
    row.drops = ", ".join(f"{short(name)} {count}" for name, count in after.drops().items()) or "none"


def short(name: str) -> str:
    """A drop's name for the table: without what all have in common."""
    return name.removeprefix("expressway_").replace("_total", "")


def serve(lab: "Lab", folder: Path, clip: Path, way: tuple[str, str], napi: set[Path]) -> Row:
    """One mode: started, checked, measured, stopped."""
    from harness.server import Server, Settings, address

    mode, send = way
    connect = address(lab.server["ipv4"])
    work = folder / f"{mode}-{send}"
    work.mkdir()
    settings = Settings(folder, folder / "root", [connect], mode=mode, udp_send=send)
    server = Server(lab, work, settings)
    row = Row(f"{mode} ({send})" if mode == "udp" else mode, "")
    try:
        server.wait_ready()
    except AssertionError:
        if mode != "zerocopy":
            raise
        # The lab's veth has none; a NIC may.
        reason = server.log().strip().splitlines()[-1]
        return Row(row.asked, "none", drops=reason.split("--io zerocopy: ")[-1])
    try:
        row.obtained = server.obtained()
        check(lab, connect, folder, clip)
        measure(server, connect, folder, napi, row)
        server.stop()
    finally:
        if server.process.poll() is None:
            server.kill()
    return row


def show(rows: list[Row]) -> None:
    """Prints the table."""
    head = ("asked", "obtained", "MB", "Gbit/s", "CPU s/GB", "packets", "mean B", "drops")
    print(f"\n{head[0]:15}{head[1]:10}{head[2]:>7}{head[3]:>8}{head[4]:>10}{head[5]:>10}{head[6]:>8}  {head[7]}")
    for row in rows:
        figures = " " * 43
        if row.packets:
            figures = (f"{row.bytes / 1e6:7.0f}{row.gbits:8.2f}{row.cpu_per_gb:10.2f}"
                       f"{row.packets:10d}{row.packet:8.0f}")
        print(f"{row.asked:15}{row.obtained:10}{figures}  {row.drops}")
    print("\nIndicative only: one curl client, one connection, a veth of MTU 1500. `make bench` measures.")


def main() -> None:
    """The demo."""
    parser = argparse.ArgumentParser(description="Expressway's demo; see `make demo`.")
    parser.add_argument("--binary", required=True, type=Path)
    os.environ["EXPRESSWAY_BIN"] = str(parser.parse_args().binary.resolve())
    if os.geteuid() != 0:
        sys.exit("demo: needs root for network namespaces and XDP: run it with sudo")
    from harness.lab import Lab
    from harness.paths import BINARY, CLIP, HOST, run

    started = time.monotonic()
    cores = sorted(os.sched_getaffinity(0))
    others = napi_threads()
    with tempfile.TemporaryDirectory(prefix="expressway-demo-") as name:
        folder = Path(name)
        (folder / "root").mkdir()
        (folder / "root" / "clip.mp4").write_bytes(CLIP.read_bytes())
        run([BINARY, "cert", "--host", HOST, "--out", folder])
        run([BINARY, "lab", "down", "demo"])
        # The client's kernel works on a core of its own, so that the server pays for itself alone.
        lab = Lab("demo", server_napi_core=cores[0], client_napi_core=cores[-1])
        try:
            napi = napi_threads() - others
            rows = []
            for way in WAYS:
                print(f"demo: {way[0]} {way[1] if way[0] == 'udp' else ''}", file=sys.stderr)
                rows.append(serve(lab, folder, CLIP, way, napi))
        finally:
            lab.down()
    show(rows)
    print(f"All hashes match. {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
