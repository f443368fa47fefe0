"""What a guest brings of this repository and machine: programs, tests, and a Python to run them."""

import json
import os
import platform
import shlex
from pathlib import Path

from beds import Bed
from failure import Failure, output
from image import Image
from kernel import Kernel
from store import ROOT
from system import script, system, tool

PEERS = ROOT / "target" / "peers"
# Where the repository's files stand in the guest.
INSIDE = "/expressway"
LIBRARIES = Path(f"/usr/lib/{platform.machine()}-linux-gnu")


def built(*names: str) -> list[Path]:
    """The programs of integration tests, as the unit tests build them."""
    if not names:
        return []
    selection = " ".join(f"--test {name}" for name in names)
    command = f"cargo test --locked --workspace --all-features {selection} --no-run --message-format=json"
    os.chdir(ROOT)
    found = {}
    for line in output(command.split(), "cargo").splitlines():
        message = json.loads(line)
        if message.get("executable"):
            found[message["target"]["name"]] = Path(message["executable"])
    missing = set(names) - set(found)
    if missing:
        raise Failure(f"cargo built no test named {', '.join(missing)}")
    return [found[name] for name in names]


def end_to_end(made: Image) -> None:
    """What the end-to-end tests of a bed need besides: their files, libxdp's tool and its BPF objects."""
    made.tree(ROOT / "tests" / "e2e", f"{INSIDE}/tests/e2e", without=["__pycache__"])
    made.copy(ROOT / "tests" / "pytest.ini", f"{INSIDE}/tests/pytest.ini")
    made.tree(PEERS / "clip", f"{INSIDE}/target/peers/clip")
    for program in ("no_ping.o", "foreign.o"):
        made.copy(PEERS / program, f"{INSIDE}/target/peers/{program}")
    tool(made, "xdp-loader", "xdp-tools")
    tool(made, "tcpdump", "tcpdump")
    made.tree(LIBRARIES / "bpf")


def testpmd(made: Image) -> None:
    """DPDK's testpmd with its AF_XDP driver, which loads a program by libxdp."""
    tool(made, "dpdk-testpmd", "dpdk-dev")
    # It is linked to the bus. The drivers it opens by each name that they have here, and each may come once.
    for driver in ("mempool_ring", "net_af_xdp"):
        found = list(LIBRARIES.glob(f"dpdk/pmds-*/librte_{driver}.so"))
        if not found:
            raise Failure(f"DPDK's librte_{driver}.so is missing: apt-get install dpdk-dev")
        made.program(found[0])
    made.tree(LIBRARIES / "bpf")


def image(bed: Bed, root: Path, kernel: Kernel, binary: Path, archive: Path) -> None:
    """Packs the guest's file system."""
    here = Path(__file__).resolve().parent
    made = system(root, kernel, bed.modules)
    made.program(binary, f"{INSIDE}/bin/expressway")
    if bed.end_to_end:
        end_to_end(made)
    for name, program in zip(bed.programs, built(*bed.programs), strict=True):
        made.program(program, f"{INSIDE}/bin/{name}")
    for name, package in bed.tools.items():
        tool(made, name, package)
    if "tmux" in bed.tools:
        # It wants a locale with UTF-8 and to know of terminals.
        made.tree(Path("/usr/lib/locale/C.utf8"))
        made.tree(Path("/lib/terminfo"))
    if bed.testpmd:
        testpmd(made)
    # Filters load it by name.
    made.program(LIBRARIES / "libpcap.so.0.8")
    made.copy(PEERS / "quicgo", f"{INSIDE}/target/peers/quicgo")
    python = made.python(PEERS / "venv" / "bin" / "python", f"{INSIDE}/site")
    made.tree(ROOT / "tests" / "e2e" / "harness", f"{INSIDE}/tests/e2e/harness", without=["__pycache__"])
    made.tree(here / "inside", f"{INSIDE}/tests/guest/inside", without=["__pycache__"])
    environment = {
        "EXPRESSWAY_BIN": f"{INSIDE}/bin/expressway",
        "EXPRESSWAY_REQUIRE_ROOT_TESTS": "1",
        "EXPRESSWAY_REQUIRE_KERNEL_TESTS": str(int(bed.has_all)),
        "EXPRESSWAY_TEST_CLIENTS": "quicgo",
        "EXPRESSWAY_TEST_DEVICES": "'eth0 eth1'",
        "EXPRESSWAY_TEST_QUEUES": str(bed.queues),
        "EXPRESSWAY_TEST_LIMIT": str(bed.limit),
        "PYTHONPATH": f"{INSIDE}/site:{INSIDE}/tests/e2e",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # Each runs, whatever became of those before; one that fails makes the whole fail.
    steps = [line for test in bed.tests for line in (f"echo {shlex.quote(f'=== {test}')}", f"{test} || failed=1")]
    pytest = f"{python} -m pytest -p no:cacheprovider --color=no -ra -v --durations=5"
    functions = [f'python() {{ {python} "$@"; }}', f'pytest() {{ {pytest} "$@"; }}', f'conformance() {{ {INSIDE}/bin/conformance "$@"; }}']
    script(made, environment, [*functions, "failed=0", *steps, "(exit $failed)"])
    made.pack(archive)
