"""The Debian package: lintian, and its life in a root of its own: installed, used, upgraded with changed files, removed, purged."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import PACKAGING, Debs, need, run

CONFIGURATION = sorted(path.name for path in (PACKAGING / "config").iterdir())


# Of packages made for a test: they are not compressed, and of a binary without debug information, as builds for tests are.
FOR_TESTS = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball,debug-file-with-no-debug-symbols"


def lintian(deb: Path) -> None:
    """Fails on what lintian calls an error or a warning."""
    run([need("lintian"), "--allow-root", "--fail-on=error,warning", "--info", f"--suppress-tags={FOR_TESTS}", deb])


def contents(deb: Path) -> dict[str, str]:
    """Path and mode of what is in a package."""
    lines = run(["dpkg-deb", "--contents", deb]).splitlines()
    return {line.split(maxsplit=5)[5].removeprefix("."): line.split()[0] for line in lines}


def test_lintian_has_nothing_to_say(debs: Debs) -> None:
    (headers,) = debs.first.parent.glob("expressway-dev_*-1_all.deb")
    for deb in (debs.first, debs.symbols, headers):
        lintian(deb)


def test_all_that_belongs_to_it_is_in_it(debs: Debs) -> None:
    files = contents(debs.first)
    for path in (
        "/usr/bin/expressway", "/usr/share/man/man1/expressway.1.gz", "/usr/share/man/man1/expressway-serve.1.gz",
        "/usr/share/bash-completion/completions/expressway", "/usr/share/zsh/vendor-completions/_expressway",
        "/usr/share/fish/vendor_completions.d/expressway.fish", "/usr/lib/sysusers.d/expressway.conf",
        "/etc/logrotate.d/expressway", "/usr/share/doc/expressway/copyright", "/usr/share/doc/expressway/examples/expressway.rules.yml",
    ):
        assert files[path].startswith("-"), path
    units = {Path(path).name for path in files if path.endswith(".service")}
    assert units == {path.name for path in (PACKAGING / "systemd").glob("*.service")}
    assert {Path(path).name for path in files if path.startswith("/etc/expressway/") and not path.endswith("/")} == set(CONFIGURATION)
    assert all("root/root" in line for line in run(["dpkg-deb", "--contents", debs.first]).splitlines())
    # Hidden commands have no page.
    assert "/usr/share/man/man1/expressway-man.1.gz" not in files


def test_the_same_binary_makes_the_same_package(debs: Debs, tmp_path: Path) -> None:
    run([Path(__file__).parents[2] / "scripts/package", "deb", "--binary", debs.first.parent / "expressway", "--out", tmp_path,
         "--compress", "none"])
    assert (tmp_path / debs.first.name).read_bytes() == debs.first.read_bytes()


def test_symbols_are_the_binarys(debs: Debs, tmp_path: Path) -> None:
    for deb in (debs.first, debs.symbols):
        run(["dpkg-deb", "--extract", deb, tmp_path])
    (symbols,) = (tmp_path / "usr/lib/debug/.build-id").rglob("*.debug")
    shown = run(["readelf", "-n", tmp_path / "usr/bin/expressway"])
    assert f"Build ID: {symbols.parent.name}{symbols.stem}" in shown


def test_c_programs_are_compiled_with_the_headers(debs: Debs, tmp_path: Path) -> None:
    """As pkg-config says, from where they are installed."""
    (headers,) = debs.first.parent.glob("expressway-dev_*-1_all.deb")
    run(["dpkg-deb", "--extract", headers, tmp_path])
    environment = {**os.environ, "PKG_CONFIG_PATH": str(tmp_path / "usr/share/pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(tmp_path),
                   "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1"}
    flags = run([need("pkg-config"), "--cflags", "expressway"], env=environment).split()
    assert flags == [f"-I{tmp_path}/usr/include"]
    examples = sorted((tmp_path / "usr/share/doc/expressway-dev/examples").glob("*.c"))
    assert len(examples) >= 3
    for example in examples:
        run([need("cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", *flags, "-fsyntax-only", example])


class Machine:
    """The root of this machine with a layer of its own above it, which is gone with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        for name in ("root", "layer", "work"):
            (folder / name).mkdir()

    def run(self, *command: str | Path, code: int = 0) -> str:
        """A command in it, as root, in mount and network namespaces that end with it."""
        script = (
            'set -e; mount -t tmpfs none "$1"; mkdir "$1/layer" "$1/work" "$1/root"; '
            '[ ! -e "$2/layer.tar" ] || tar -C "$1/layer" --xattrs --xattrs-include="*" -xf "$2/layer.tar"; '
            'mount -t overlay overlay -o "lowerdir=/,upperdir=$1/layer,workdir=$1/work" "$1/root"; '
            'for each in proc dev; do mount --rbind "/$each" "$1/root/$each"; done; '
            'mount -t tmpfs none "$1/root/run"; mount -t tmpfs none "$1/root/tmp"; mkdir "$1/root/tmp/debs"; '
            'mount --bind "$2/debs" "$1/root/tmp/debs"; status=0; '
            'home="$2"; base="$1"; shift 2; chroot "$base/root" "$@" || status=$?; '
            'tar -C "$base/layer" --xattrs --xattrs-include="*" -cf "$home/layer.tar" .; exit $status'
        )
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8",
                       "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return run(["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script, "sh", self.root, self.folder,
                    *command], code=code, env=environment)

    def layer(self) -> list[str]:
        """What is in its own layer: files that were made or changed."""
        return run(["tar", "-tf", self.folder / "layer.tar"]).splitlines()

    def sh(self, script: str, code: int = 0) -> str:
        """A shell's lines in it."""
        return self.run("sh", "-ec", script, code=code)


@pytest.fixture
def machine(debs: Debs, tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        assert "EXPRESSWAY_REQUIRE_ROOT_TESTS" not in os.environ, "needs root"
        pytest.skip("needs root")
    machine = Machine(tmp_path)
    (tmp_path / "debs").mkdir()
    for deb in (debs.first, debs.second, debs.symbols):
        os.link(deb, tmp_path / "debs" / deb.name)
    with suppress(subprocess.TimeoutExpired):
        try:
            machine.run("true")
        except AssertionError as error:
            assert "overlay" in str(error), error
            pytest.skip(f"no overlay of this machine's root: {error}")
    yield machine


def test_it_is_installed_used_upgraded_removed_and_purged(machine: Machine, debs: Debs) -> None:
    first, second = (f"dpkg --install --force-confdef --force-confold /tmp/debs/{deb.name}" for deb in (debs.first, debs.second))
    machine.sh(first)
    assert machine.sh("dpkg-query -W -f '${db:Status-Status} ${Version}' expressway").strip() == "installed 0.1.0-1"
    # All that depends on what is installed.
    assert "expressway 0.1.0" in machine.sh("expressway --version")
    assert machine.sh("getent passwd expressway").startswith("expressway:x:")
    assert "EXPRESSWAY" in machine.sh("man --pager=cat expressway-serve 2>&1 | head -n 1").upper()
    assert "serve" in machine.sh(
        "bash -c '. /usr/share/bash-completion/completions/expressway; COMP_WORDS=(expressway se); COMP_CWORD=1; "
        "_expressway expressway se expressway; echo \"${COMPREPLY[@]}\"'"
    )
    # Each service's configuration is one, once the certificates are there.
    machine.sh(
        "expressway cert --host localhost --out /tmp/c && cp /tmp/c/cert.pem /tmp/c/key.pem /etc/expressway; mkdir -p /var/www/html;"
        "expressway serve --config /etc/expressway/serve.toml --check; expressway agent --config /etc/expressway/agent.toml --check;"
        "for each in guard relay balance forward; do expressway $each --config /etc/expressway/$each.toml --check; done"
    )
    # An upgrade keeps what was changed, and replaces the rest.
    machine.sh("echo '# mine' >>/etc/expressway/agent.toml; rm /etc/expressway/fanout.env; touch /etc/expressway/own.toml")
    machine.sh("mkdir -p /var/lib/expressway /var/cache/expressway; touch /var/lib/expressway/state")
    machine.sh(second)
    assert machine.sh("dpkg-query -W -f '${Version}' expressway").strip() == "0.1.0-2"
    assert machine.sh("tail -n 1 /etc/expressway/agent.toml") == "# mine\n"
    machine.sh("test ! -e /etc/expressway/fanout.env; test -e /etc/expressway/own.toml; test -e /var/lib/expressway/state")
    # Without the program its files stay; without the package they do not, but for what is somebody's own.
    machine.sh("dpkg --remove expressway; test ! -e /usr/bin/expressway; test -e /etc/expressway/agent.toml")
    machine.sh("dpkg --purge expressway; test ! -e /var/lib/expressway; test ! -e /var/cache/expressway")
    assert machine.sh("ls /etc/expressway").split() == ["cert.pem", "key.pem", "own.toml"]


def test_nothing_stays_of_an_unchanged_one(machine: Machine, debs: Debs) -> None:
    machine.sh(f"dpkg --install /tmp/debs/{debs.first.name}")
    assert "./usr/bin/expressway" in machine.layer()
    machine.sh("dpkg --purge expressway")
    # What is removed of a layer is marked in it where the machine below has it, and gone where it has not.
    stays = [path for path in machine.layer() if "expressway" in path and not path.startswith(("./var/lib/dpkg/", "./var/log/"))]
    assert stays == []


@pytest.mark.parametrize("command", ["serve", "relay"])
def test_a_service_serves_as_its_unit_starts_it(machine: Machine, debs: Debs, command: str) -> None:
    """As the package's user, without capabilities, with the configuration of the package as far as it is not the machine's own."""
    said = machine.sh(f"""
ip link set lo up
dpkg --install /tmp/debs/{debs.first.name} >/dev/null
expressway cert --host localhost --out /etc/expressway >/dev/null
chgrp expressway /etc/expressway/key.pem; chmod 640 /etc/expressway/key.pem
mkdir -p /var/www/html /run/expressway/{command} /var/cache/expressway
chown expressway: /run/expressway/{command} /var/cache/expressway
sed -i 's/^agent = .*/mode = "udp"/; s/0.0.0.0:443/127.0.0.1:4433/; s/, "\\[::\\]:443"//' /etc/expressway/serve.toml
setpriv --reuid=expressway --regid=expressway --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \\
  expressway {command} --config /etc/expressway/{command}.toml >/tmp/out 2>/tmp/log &
pid=$!
until grep -q ^ready /tmp/out; do kill -0 $pid || {{ cat /tmp/log; exit 1; }}; sleep 0.1; done
stat -c '%U %a' /run/expressway/{command}/admin.sock
expressway top --once --json --admin unix:/run/expressway/{command}/admin.sock >/dev/null
kill $pid; wait $pid
ls /run/expressway/{command}
""")
    # And nothing of the socket.
    assert said.splitlines()[-1] == "expressway 660", said
