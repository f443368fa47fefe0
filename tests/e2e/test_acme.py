"""Certificates by ACME from pebble, in a namespace: obtained, served, kept, renewed, and not obtained for a while."""

import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT, PEERS
from harness.pebble import URL, Pebble

TLS_PORT, HTTP_PORT = 5001, 5002
NAMES = ("one.test", "two.test")
PROGRAM = BINARY.parent / "examples" / "acme_server"

assert PROGRAM.exists(), f"no {PROGRAM}: cargo build --example acme_server"
assert (PEERS / "pebble").exists(), "no pebble: run scripts/peers pebble"


class Site:
    """Serves names with what ACME brings."""

    def __init__(self, lab: Lab, folder: Path, ca: Path, challenge: str, *names: str) -> None:
        self.lab = lab
        self.folder = folder / "acme"
        self.log_file = folder / "site.log"
        words = [self.folder, URL, ca, challenge, f"127.0.0.1:{TLS_PORT}", f"127.0.0.1:{HTTP_PORT}", *names]
        with self.log_file.open("ab") as log:
            command = lab.inside("server", PROGRAM, *map(str, words))
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def stop(self) -> None:
        """Ends it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT)

    def certificate(self, name: str, root: Path) -> bytes | None:
        """The certificate for a name, if the authority's root has signed it."""
        context = ssl.create_default_context(cafile=root)
        # Pebble's certificates are for seconds.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT

        def ask() -> bytes | None:
            try:
                with (
                    socket.create_connection(("127.0.0.1", TLS_PORT), timeout=LIMIT) as plain,
                    context.wrap_socket(plain, server_hostname=name) as secure,
                ):
                    return secure.getpeercert(binary_form=True)
            except (ssl.SSLError, ConnectionError):
                return None

        return run_inside(self.lab.server_namespace, ask)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Waits until something is so."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert self.process.poll() is None, self.log_file.read_text()
            assert time.monotonic() < deadline, self.log_file.read_text()
            time.sleep(0.1)

    def wait_for(self, name: str, root: Path, other: bytes | None = None) -> bytes:
        """Waits for a good certificate, another than one that is known."""
        found: list[bytes] = []

        def condition() -> bool:
            certificate = self.certificate(name, root)
            if certificate and certificate != other:
                found.append(certificate)
            return bool(found)

        self.wait(condition)
        return found[0]


@pytest.fixture
def start(make_lab, tmp_path: Path) -> Iterator[Callable]:
    """Starts authorities and sites in one lab, and ends them."""
    started: list = []
    lab = make_lab()

    def authority(seconds: int) -> Pebble:
        folder = tmp_path / f"pebble-{len(started)}"
        folder.mkdir()
        started.append(Pebble(lab, folder, seconds=seconds, tls_port=TLS_PORT, http_port=HTTP_PORT))
        return started[-1]

    def site(ca: Path, challenge: str, *names: str) -> Site:
        started.append(Site(lab, tmp_path, ca, challenge, *names))
        return started[-1]

    yield authority, site
    for one in reversed(started):
        one.stop()


@pytest.mark.parametrize("challenge", ["tls-alpn-01", "http-01"])
def test_certificates_are_obtained_kept_and_served_at_once_after_a_restart(
    start, tmp_path: Path, challenge: str
) -> None:
    authority, make_site = start
    pebble = authority(86_400)
    root = pebble.root(tmp_path / "root.pem")
    site = make_site(pebble.ca, challenge, *NAMES)
    certificates = [site.wait_for(name, root) for name in NAMES]
    assert certificates[0] != certificates[1]
    kept = sorted(path.name for path in site.folder.iterdir() if path.name.endswith(".cert.pem"))
    assert kept == ["one.test.cert.pem", "two.test.cert.pem"]
    assert {path.stat().st_mode & 0o777 for path in site.folder.iterdir()} == {0o600}
    site.stop()
    pebble.stop()
    # Without the authority: what was kept is served.
    site = make_site(pebble.ca, challenge, *NAMES)
    site.wait(lambda: "ready" in site.log_file.read_text())
    assert [site.wait_for(name, root) for name in NAMES] == certificates


def test_certificates_are_renewed_before_their_end(start, tmp_path: Path) -> None:
    authority, make_site = start
    pebble = authority(30)
    root = pebble.root(tmp_path / "root.pem")
    site = make_site(pebble.ca, "tls-alpn-01", NAMES[0])
    first = site.wait_for(NAMES[0], root)
    second = site.wait_for(NAMES[0], root, first)
    assert second != first


def test_a_name_that_cannot_be_checked_holds_up_no_other(start, tmp_path: Path) -> None:
    authority, make_site = start
    pebble = authority(86_400)
    root = pebble.root(tmp_path / "root.pem")
    # Pebble refuses names of this kind by its configuration of blocked domains.
    site = make_site(pebble.ca, "tls-alpn-01", "blocked-domain.example", NAMES[0])
    site.wait_for(NAMES[0], root)
    assert site.certificate("blocked-domain.example", root) is None
