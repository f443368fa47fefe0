"""The runner itself: what it says when it cannot, and that no end of a guest is taken for success."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PLUMBING = HERE.parents[1] / "scripts" / "guest"
sys.path[:0] = [str(PLUMBING), str(HERE)]

from failure import Failure  # noqa: E402
from image import Image  # noqa: E402
from kernel import Kernel, choose, latest  # noqa: E402
from kernels import Result, table  # noqa: E402
from machine import Machine  # noqa: E402


class Index:
    """A package index with these names."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def names(self, _prefix: str) -> tuple[str, ...]:
        return self._names


KERNELS = Index(
    "linux-image-6.12.95+deb12-cloud-amd64",
    "linux-image-6.18.9+deb13-cloud-amd64",
    "linux-image-6.18.15+deb13-cloud-amd64",
    "linux-image-6.18.15+deb13-rt-amd64",
    "linux-image-6.18.15+deb13-cloud-amd64-unsigned",
    "linux-image-6.18.20+deb13-amd64",
    "linux-image-7.3.4+deb13-cloud-amd64",
)


def test_the_kernel_is_the_latest_of_the_oldest_series_that_will_do(monkeypatch) -> None:
    monkeypatch.delenv("EXPRESSWAY_GUEST_KERNEL", raising=False)
    assert choose(KERNELS, "cloud-amd64") == "linux-image-6.18.15+deb13-cloud-amd64"
    assert choose(KERNELS, "amd64") == "linux-image-6.18.20+deb13-amd64"
    monkeypatch.setenv("EXPRESSWAY_GUEST_KERNEL", "7.3")
    assert choose(KERNELS, "cloud-amd64") == "linux-image-7.3.4+deb13-cloud-amd64"


@pytest.mark.parametrize("asked", ["6.12", "8.1"])
def test_a_kernel_that_is_not_there_is_named_with_those_that_are(monkeypatch, asked: str) -> None:
    monkeypatch.setenv("EXPRESSWAY_GUEST_KERNEL", asked)
    with pytest.raises(Failure, match=rf"no kernel {asked} .* there are: 6\.18, 7\.3"):
        choose(KERNELS, "cloud-amd64")


def test_of_each_series_the_latest_is_found_under_old_and_new_names() -> None:
    older = ["5.10.0-9", "5.10.0-35", "6.1.0-0.deb11.35", "6.1.0-40", "6.1.0-38"]
    names = [*KERNELS.names(""), *(f"linux-image-{one}-cloud-amd64" for one in older)]
    assert latest(names, "cloud-amd64") == {
        (5, 10): "linux-image-5.10.0-35-cloud-amd64",
        (6, 1): "linux-image-6.1.0-40-cloud-amd64",
        (6, 12): "linux-image-6.12.95+deb12-cloud-amd64",
        (6, 18): "linux-image-6.18.15+deb13-cloud-amd64",
        (7, 3): "linux-image-7.3.4+deb13-cloud-amd64",
    }


def test_the_table_says_what_each_kernel_gives_and_why_not() -> None:
    says = "expressway: XDP program: load failed"
    old = Result("5.10", 0, [{"row": "guard", "gives": False, "says": says, "instructions": 0}])
    new = Result("6.18", 1, [{"row": "guard", "gives": True, "says": "", "instructions": 12345},
                             {"row": "top", "gives": True, "says": says, "instructions": 0}])  # fmt: skip
    page = table([old, new], ["buster: no such suite"])
    assert "|  | 5.10 | 6.18 |" in page
    assert "| guard | no [1] | yes |" in page and "| top | fails | yes [1] |" in page
    assert "\n1. XDP program: load failed\n" in page
    assert "| guard | not told | 12,345 |" in page and "- buster: no such suite." in page


def test_modules_come_behind_those_that_they_depend_on(tmp_path: Path) -> None:
    for name, depends in (("virtio_net", "net-failover"), ("net_failover", "failover"), ("failover", "")):
        (tmp_path / f"{name}.ko").write_bytes(b"ELF\0license=GPL\0depends=" + depends.encode() + b"\0intree=Y\0")
    order = [name for name, _ in Kernel("6.18", tmp_path, tmp_path).closure(["virtio_net", "built_in"])]
    assert order == ["failover.ko", "net_failover.ko", "virtio_net.ko"]


def test_the_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    made = Image()
    made.write("/etc/motd", "hello\n")
    made.write("/init", "#!/bin/sh\n", executable=True)
    made.link("/bin/sh", "busybox")
    made.pack(tmp_path / "made.cpio")
    with (tmp_path / "made.cpio").open("rb") as archive:
        subprocess.run([BUSYBOX, "cpio", "-id"], cwd=tmp_path, stdin=archive, capture_output=True, check=True)
    assert (tmp_path / "etc/motd").read_text() == "hello\n"
    assert os.access(tmp_path / "init", os.X_OK)
    assert os.readlink(tmp_path / "bin/sh") == "busybox"


BUSYBOX = next((HERE.parents[1] / "target" / "guest" / "qemu").glob("**/bin/busybox"), Path("busybox"))


def machine(folder: Path, script: str) -> Machine:
    """A machine whose QEMU is a script; $verdict is where the second serial port goes."""
    program = folder / "usr/bin/qemu-system-x86_64"
    program.parent.mkdir(parents=True)
    find = 'for word; do case $word in file:*) verdict=${word#file:};; esac; done\n'
    program.write_text(f"#!/bin/sh\n{find}{script}\n")
    program.chmod(0o755)
    return Machine(folder, Kernel("6.18", folder, folder), [])


@pytest.mark.parametrize("code", [0, 1, 101])
def test_the_exit_code_is_that_of_the_tests(tmp_path: Path, code: int) -> None:
    guest = machine(tmp_path, f'echo "exit {code}" >"$verdict"')
    assert guest.run(tmp_path / "archive", tmp_path / "verdict", deadline=60) == code


@pytest.mark.parametrize("script", ["exit 0", "exit 1", 'echo "exit" >"$verdict"', 'echo "test result: ok"'])
def test_a_guest_that_ends_without_a_verdict_has_failed(tmp_path: Path, script: str) -> None:
    (tmp_path / "verdict").write_text("exit 0\n")
    with pytest.raises(Failure, match="before its tests finished"):
        machine(tmp_path, script).run(tmp_path / "archive", tmp_path / "verdict", deadline=60)


def test_a_guest_that_hangs_is_ended_at_its_deadline(tmp_path: Path) -> None:
    guest = machine(tmp_path, 'echo $$ >"$verdict.pid"; exec sleep 1000')
    with pytest.raises(Failure, match="did not finish within 2 s"):
        guest.run(tmp_path / "archive", tmp_path / "verdict", deadline=2)
    process = int((tmp_path / "verdict.pid").read_text())
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root (a namespace without a network)")
def test_without_a_network_one_line_says_so(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(PLUMBING)!r})\n"
    code += "from pathlib import Path\nfrom packages import Packages\nfrom failure import Failure\n"
    code += f"try:\n    Packages(Path({str(tmp_path)!r})).update()\nexcept Failure as failure:\n    print(failure)\n"
    result = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    (line,) = result.stdout.splitlines()
    assert line.startswith("package index: ") and line.endswith("a Debian mirror among apt's sources"), line
