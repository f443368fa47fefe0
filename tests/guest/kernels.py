"""What each kernel gives: boots guests with the kernels of Debian's releases, and the oldest and newest of their backports, has
every command that loads BPF programs do its work there, and writes the table of it.

    python3 tests/guest/kernels.py [--binary FILE] [--series 6.1]... [--all] [--jobs N] [--list]

On a kernel that is too old for a command, its refusal has to be the documented line. Exit code 0: all is as documented;
1: something is not; 2: the guests could not be run. The table, docs/kernels.md, is written if all is as documented and
--series chose none.
"""

import argparse
import io
import json
import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "guest"))

from beds import Bed  # noqa: E402
from contents import INSIDE, PEERS, image  # noqa: E402
from failure import Failure  # noqa: E402
from kernel import Kernel, fetch, latest, load  # noqa: E402
from machine import Machine  # noqa: E402
from packages import Packages  # noqa: E402
from store import GUEST, ROOT, locked, once, qemu, say  # noqa: E402

# Releases whose kernels somebody may run, and what they took over from later ones. What the mirror has not is named.
SUITES = ["bullseye", "bullseye-backports", "bookworm", "bookworm-backports", "trixie", "trixie-backports"]
FLAVOUR = "cloud-amd64"
TABLE = ROOT / "docs" / "kernels.md"
# Long-term series since 5.10 that none of them has.
ABSENT = [(5, 15)]
TEST = f"{INSIDE}/tests/guest/inside/test_kernels.py"

# One guest's console after the other.
PRINTING = threading.Lock()

Series = tuple[int, int]
Row = dict[str, str | bool | int]


@dataclass
class Found:
    """A kernel of a suite."""

    series: Series
    suite: str
    package: str
    packages: Packages


@dataclass
class Result:
    """What became of a guest."""

    release: str
    code: int
    rows: list[Row] = field(default_factory=list)


def found() -> tuple[list[Found], list[str]]:
    """The latest kernel of each series, and what of SUITES the mirror has not."""
    kernels: dict[Series, Found] = {}
    missing = []
    for suite in SUITES:
        packages = Packages(GUEST / "apt-kernels" / suite, [suite])
        try:
            names = packages.names("linux-image-")
        except Failure as failure:
            say(f"{suite}: {failure}")
            missing.append(f"{suite}: not on the mirror that this machine has its packages from")
            continue
        for series, package in latest(names, FLAVOUR).items():
            kernels[series] = Found(series, suite, package, packages)
    if not kernels:
        raise Failure(f"no kernel for {FLAVOUR} in any suite; {'; '.join(missing)}")
    return [kernels[series] for series in sorted(kernels)], missing


def chosen(kernels: list[Found], series: list[str], everything: bool) -> list[Found]:
    """Those of releases, and the oldest and newest of backports, unless others are asked for."""
    if series:
        return [one for one in kernels if "{}.{}".format(*one.series) in series]
    backports = [one for one in kernels if one.suite.endswith("-backports")]
    return [one for one in kernels if everything or one not in backports[1:-1]]


def unpacked(one: Found) -> Kernel:
    """Its image and modules, fetched once."""

    def make(folder: Path) -> list[str]:
        say(f"fetching {one.package} of {one.suite}")
        return fetch(one.packages, one.package, folder)

    return load(once(f"kernel-{one.package.removeprefix('linux-image-')}", make))


def run(root: Path, kernel: Kernel, binary: Path) -> Result:
    """Boots it; its rows come by the third serial port."""
    name = f"kernels-{kernel.release}"
    bed = Bed(
        about="what this kernel gives",
        flavour=FLAVOUR,
        modules=["veth", "bridge", "xsk_diag"],
        devices=[],
        tests=["stty -F /dev/ttyS2 raw -echo", f"EXPRESSWAY_ROWS=/dev/ttyS2 pytest -p no:warnings {TEST}"],
        # Older verifiers take their time, and more on a processor that is emulated.
        limit=300,
        deadline=1800,
        end_to_end=True,
        programs=[],
        tools={"ping": "iputils-ping", "curl": "curl"},
        has_all=False,
        memory=3072,
    )
    archive, verdict, lines = (GUEST / f"{name}.{kind}" for kind in ("cpio", "verdict", "lines"))
    image(bed, root, kernel, binary, archive)
    console, result, started = io.StringIO(), Result(kernel.release, 1), time.monotonic()
    log = GUEST / f"{name}.log"
    try:
        machine = Machine(root, kernel, bed.devices, bed.memory)
        take = (lines, lambda line: result.rows.append(json.loads(line)))
        result.code = machine.run(archive, verdict, bed.deadline, console=console, lines=take)
    except Failure as failure:
        print(failure, file=console)
    finally:
        log.write_text(console.getvalue())
        archive.unlink()
    say(f"Linux {kernel.release}: {len(result.rows)} rows in {time.monotonic() - started:.0f} s; {log}")
    if result.code:
        with PRINTING:
            print(console.getvalue(), flush=True)
    return result


def table(results: list[Result], missing: list[str]) -> str:
    """The page."""
    names = list(dict.fromkeys(str(row["row"]) for result in results for row in result.rows))
    notes: list[str] = []

    def note(text: str) -> str:
        if text not in notes:
            notes.append(text)
        return f" [{notes.index(text) + 1}]"

    def cell(result: Result, name: str) -> str:
        rows = [row for row in result.rows if row["row"] == name]
        if not rows:
            return "fails"
        says = " ".join(dict.fromkeys(str(row["says"]) for row in rows if row["says"]))
        word = "yes" if all(row["gives"] for row in rows) else "no"
        return word + (note(plain(says)) if says else "")

    def looked(result: Result, name: str) -> str:
        most = max((int(row["instructions"]) for row in result.rows if row["row"] == name), default=0)
        return f"{most:,}" if most else "not told"

    releases = [result.release for result in results]
    head = ["|  | " + " | ".join(releases) + " |", "|---|" + "---|" * len(releases)]
    lines = [
        "# What each kernel gives",
        "",
        "Written by `make test-kernels`, which boots each of these kernels of Debian in a guest and has every command that loads",
        "BPF programs do its work there on packets. A kernel that is too old for a command has to make it say so in one line.",
        "",
        *head,
        *(f"| {name} | " + " | ".join(cell(result, name) for result in results) + " |" for name in names),
        "",
        *(f"{number}. {text}" for number, text in enumerate(notes, start=1)),
        "",
        "Instructions that the verifier looked at for the largest program of a command (its limit is 1,000,000):",
        "",
        *head,
    ]
    for name in names:
        if any(row["instructions"] for result in results for row in result.rows if row["row"] == name):
            lines.append(f"| {name} | " + " | ".join(looked(result, name) for result in results) + " |")
    absent = [f"Linux {major}.{minor}: none of these suites has it" for major, minor in ABSENT]
    lines += ["", "Not run:", "", *(f"- {text}." for text in absent + [plain(one) for one in missing])]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Without what differs from run to run, and harmless in Markdown."""
    text = re.sub(r"/tmp/\S*/", "", text.removeprefix("expressway: "))
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="tests/guest/kernels.py", description=__doc__.split("\n\n")[0])
    default = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "expressway"
    binary = Path(os.environ.get("EXPRESSWAY_BIN", default))
    parser.add_argument("--binary", type=Path, default=binary, help="the program (%(default)s)")
    parser.add_argument("--series", action="append", default=[], help="only this series, such as 6.1; writes no table")
    parser.add_argument("--all", action="store_true", help="every series of backports too")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="guests at a time (%(default)s)")
    parser.add_argument("--list", action="store_true", help="list the kernels and run nothing")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with locked():
            kernels, missing = found()
            for one in kernels if arguments.list else ():
                print(f"{one.series[0]}.{one.series[1]}  {one.package}  {one.suite}")
            if arguments.list:
                return 0
            for needed, how in ((arguments.binary, "make build"), (PEERS / "quicgo", "scripts/peers")):
                if not needed.exists():
                    raise Failure(f"{needed} is missing: {how}")
            wanted = chosen(kernels, arguments.series, arguments.all)
            missing += [f"Linux {one.series[0]}.{one.series[1]} ({one.suite}): with --all" for one in kernels if one not in wanted]
            root = qemu(Packages(GUEST / "apt"))
            ready = [unpacked(one) for one in wanted]
        # Two of these at a time would use the same files; other guests have others.
        with locked("kernels.lock"), ThreadPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(lambda kernel: run(root, kernel, arguments.binary), ready))
    except Failure as failure:
        say(str(failure))
        return 2
    page = table(results, missing)
    print(page)
    failed = [result.release for result in results if result.code]
    if failed and not arguments.series:
        say(f"{TABLE.relative_to(ROOT)} is not written: failed on Linux {', '.join(failed)}")
    elif not failed and not arguments.series:
        TABLE.write_text(page)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
