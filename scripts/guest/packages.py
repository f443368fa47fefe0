"""Debian packages beside the machine: found in a private index, checked by apt, unpacked, never installed.

The suites are the machine's own and the backports, on the mirror that the machine's apt sources name. apt verifies
the index by Debian's signature and each package by the index. Needs no root.
"""

import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from failure import Failure, output

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Kernels that are newer than those of the release stand here.
KERNEL_SUITE = "trixie-backports"
OFFLINE = "; it takes a network and a Debian mirror among apt's sources"


class Packages:
    """A package index of its own in a folder."""

    def __init__(self, folder: Path, suites: Sequence[str] = ()) -> None:
        """`suites` in place of the usual ones; of one that the mirror has not, nothing is to be had."""
        self.folder = folder
        self.codename = _codename()
        self._suites = suites or [self.codename, f"{self.codename}-backports", KERNEL_SUITE]
        self._updated = False

    def _apt(self, program: str, *arguments: str) -> list[str]:
        options = {
            "Dir::Etc::SourceList": self.folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            # The lock of the machine's package database is not ours to take, and neither is its user.
            "Debug::NoLocking": "true",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::Retries": "3",
        }
        flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return [program, "-qq", *flags, *arguments]

    def update(self) -> None:
        """Fetches the index, once."""
        if self._updated:
            return
        if not KEYRING.exists():
            raise Failure(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
        mirror = _mirror(self.codename)
        suites = dict.fromkeys(self._suites)
        for folder in ("lists/partial", "cache/archives/partial"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        lines = [f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in suites]
        (self.folder / "sources.list").write_text("".join(lines))
        strict = "APT::Update::Error-Mode=any"
        output(self._apt("apt-get", "update", "-o", strict), "package index", OFFLINE)
        self._updated = True

    def names(self, prefix: str) -> list[str]:
        """Every package whose name begins so."""
        self.update()
        return output(self._apt("apt-cache", "pkgnames", prefix), "package index").split()

    def needed(self, *names: str, backports: bool = False) -> list[str]:
        """Those packages and what they depend on that this machine does not have, as `NAME=VERSION`."""
        self.update()
        target = ["-t", f"{self.codename}-backports"] if backports else []
        command = self._apt("apt-get", "install", "--simulate", "--no-install-recommends", *target, *names)
        # One `-q` keeps the plan on standard output.
        command[1] = "-q"
        found = []
        for line in output(command, f"resolution of {' '.join(names)}").splitlines():
            words = line.split()
            if words[:1] == ["Inst"]:
                # Inst NAME [OLD] (NEW ORIGIN [ARCH])
                version = next(word for word in words if word.startswith("(")).lstrip("(")
                found.append(f"{words[1]}={version}")
        return found

    def depends(self, name: str) -> list[str]:
        """What a package depends on, by name, whether this machine could have it or not."""
        self.update()
        lines = output(self._apt("apt-cache", "depends", "--important", name), f"dependencies of {name}").splitlines()
        return [words[1] for line in lines if (words := line.split())[:1] in (["Depends:"], ["PreDepends:"])]

    def download(self, wanted: Sequence[str], into: Path) -> list[Path]:
        """Fetches packages, `NAME` or `NAME=VERSION`, into a folder, checked by the index."""
        into.mkdir(parents=True, exist_ok=True)
        command = shlex.join(self._apt("apt-get", "download", *wanted))
        output(["sh", "-c", f"cd {shlex.quote(str(into))} && {command}"], f"download of {' '.join(wanted)}", OFFLINE)
        return sorted(into.glob("*.deb"))


def unpack(packages: Iterable[Path], into: Path) -> None:
    """Unpacks packages into a folder, none of their scripts run."""
    into.mkdir(parents=True, exist_ok=True)
    for package in packages:
        output(["dpkg-deb", "--extract", package, into], f"unpacking {package.name}")


def unpack_some(package: Path, paths: list[str], into: Path) -> None:
    """Unpacks what of a package matches one of the patterns: kernels are large."""
    into.mkdir(parents=True, exist_ok=True)
    archive = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
    select = ["tar", "-x", "-C", into, "--wildcards", "--no-anchored", *paths]
    # A pattern that matches nothing is an error of tar's: not every part of a kernel has each.
    subprocess.run(select, stdin=archive.stdout, stderr=subprocess.DEVNULL, check=False)
    if archive.stdout:
        archive.stdout.close()
    archive.wait()


def _codename() -> str:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        lines = []
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    if fields.get("ID") != "debian" or "VERSION_CODENAME" not in fields:
        raise Failure("the guest's kernel and QEMU come from Debian packages, but this is not a Debian release")
    return fields["VERSION_CODENAME"].strip('"')


def _mirror(codename: str) -> str:
    """The mirror that the machine itself has its release from."""
    form = "$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)"
    for line in output(["apt-get", "indextargets", "--format", form], "apt's sources").splitlines():
        kind, release, component, uri = line.split()
        if (kind, release, component) == ("Packages", codename, "main"):
            return uri
    raise Failure(f"apt's sources name no mirror of Debian {codename}: see /etc/apt/sources.list.d")
