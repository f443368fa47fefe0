"""`serve` with certificates by ACME from pebble, as an unprivileged user and confined: obtained, served, kept, renewed,
and not obtained for a while."""

import json
import shutil
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import clients
from harness.agent import status
from harness.lab import Lab
from harness.namespace import run_inside
from harness.origins import wait
from harness.paths import HOST, LIMIT, PEERS, open_to_all
from harness.pebble import URL, Pebble
from harness.server import Server, address

TLS_PORT, HTTP_PORT = 5001, 5002
NAMES = (HOST, "two.test")

assert (PEERS / "pebble").exists(), "no pebble: run scripts/peers pebble"


class World:
    """A lab, the folder that certificates are kept in, and authorities and servers that end with their test."""

    def __init__(self, lab: Lab, folder: Path, make_server: Callable[..., Server]) -> None:
        self.lab = lab
        self.make_server = make_server
        self.folder = folder
        # What strangers cannot look into; its owner makes the rest.
        state = folder / "state"
        state.mkdir()
        shutil.chown(state, "nobody")
        open_to_all(folder)
        self.kept = state / "acme"
        self.root = folder / "root.pem"
        self.pebbles: list[Pebble] = []

    def authority(self, seconds: int) -> Pebble:
        """Starts one; its certificates are valid for some seconds."""
        folder = self.folder / f"pebble-{len(self.pebbles)}"
        folder.mkdir()
        pebble = Pebble(self.lab, folder, seconds=seconds, tls_port=TLS_PORT, http_port=HTTP_PORT)
        self.pebbles.append(pebble)
        shutil.copy(pebble.ca, self.folder / "authority.pem")
        pebble.root(self.root)
        return pebble

    def serve(self, challenge: str, *more: str) -> Server:
        """A server whose sites have these names, and no certificates but those of ACME."""
        host = self.lab.server["ipv4"]
        acme = {
            "email": '"test@example.org"',
            "directory": f'"{self.kept}"',
            "url": f'"{URL}"',
            "ca": f'"{self.folder}/authority.pem"',
            "challenge": f'"{challenge}"',
        }
        server = self.make_server(
            self.lab, mode="udp", certificates=None, listen=[address(host, TLS_PORT)], site=self.site(*more),
            arrays=["[[http]]", f'listen = "{address(host, HTTP_PORT)}"', ""],
            more={"server": {"user": '"nobody"'}, "acme": acme},
        )
        now = status(server.process.pid)
        assert (now["CapEff"], now["Seccomp"], now["NoNewPrivs"]) == ("0" * 16, "2", "1")
        assert "confined: landlock on, seccomp on" in server.log()
        return server

    def site(self, *names: str) -> str:
        """The lines of a site more."""
        return f"[[site]]\nhosts = {json.dumps(names)}\nroot = \"{self.folder}\"\n" if names else ""

    def certificate(self, name: str) -> bytes | None:
        """What is served over TCP for a name, if the authority has signed it."""
        context = ssl.create_default_context(cafile=self.root)
        # Pebble's certificates are for seconds.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT

        def ask() -> bytes | None:
            try:
                with (
                    socket.create_connection((self.lab.server["ipv4"], TLS_PORT), timeout=LIMIT) as plain,
                    context.wrap_socket(plain, server_hostname=name) as secure,
                ):
                    return secure.getpeercert(binary_form=True)
            except (ssl.SSLError, ConnectionError):
                return None

        return run_inside(self.lab.client_namespace, ask)

    def wait_for(self, name: str, *others: bytes) -> bytes:
        """Waits for a good certificate, another than those."""
        found: list[bytes] = []

        def condition() -> bool:
            certificate = self.certificate(name)
            if certificate and certificate not in others:
                found.append(certificate)
            return bool(found)

        wait(f"a certificate for {name}", condition)
        return found[0]

    def fetch(self) -> int:
        """The status of a request over HTTP/3, with the certificate of the first name."""
        trusted = self.folder / "trusted"
        trusted.mkdir(exist_ok=True)
        shutil.copy(self.root, trusted / "ca.pem")
        connect = address(self.lab.server["ipv4"], TLS_PORT)
        (answer,) = clients.fetch(self.lab, "quicgo", connect, trusted, ["/small.txt"])
        return answer.status


@pytest.fixture
def world(make_lab, make_server, tmp_path: Path) -> Iterator[World]:
    """One in which nothing runs yet."""
    made = World(make_lab(), tmp_path, make_server)
    yield made
    for pebble in made.pebbles:
        pebble.stop()


@pytest.mark.parametrize("challenge", ["tls-alpn-01", "http-01"])
def test_certificates_are_obtained_kept_and_served_at_once_after_a_kill(world: World, challenge: str) -> None:
    pebble = world.authority(86_400)
    server = world.serve(challenge, NAMES[1])
    certificates = [world.wait_for(name) for name in NAMES]
    assert certificates[0] != certificates[1]
    assert world.fetch() == 200
    kept = sorted(path.name for path in world.kept.iterdir() if path.name.endswith(".cert.pem"))
    assert kept == [f"{name}.cert.pem" for name in NAMES]
    assert world.kept.stat().st_mode & 0o777 == 0o700
    assert {(path.stat().st_mode & 0o777, path.owner()) for path in world.kept.iterdir()} == {(0o600, "nobody")}
    server.kill()
    pebble.stop()
    # Without the authority: what was kept is served from the first handshake on.
    world.serve(challenge, NAMES[1])
    assert [world.certificate(name) for name in NAMES] == certificates
    assert world.fetch() == 200


def test_certificates_are_renewed_also_behind_a_kill_in_the_middle_of_it(world: World) -> None:
    world.authority(15)
    server = world.serve("tls-alpn-01")
    first = world.wait_for(HOST)
    second = world.wait_for(HOST, first)
    server.kill()
    # What one leaves that is killed while it writes.
    torn = world.kept / f"{HOST}.cert.pem.new"
    torn.write_bytes(second[:100])
    shutil.chown(torn, "nobody")
    world.serve("tls-alpn-01")
    world.wait_for(HOST, first, second)
    assert not torn.exists()


def test_without_its_authority_it_serves_and_a_reload_with_another_name_asks_again(world: World) -> None:
    world.authority(86_400).stop()
    server = world.serve("http-01")
    server.wait_log("no certificate: ")
    assert "serving a self-signed one" in server.log()
    assert world.certificate(HOST) is None
    world.authority(86_400)
    # Its own certificate is another one, which is read again for each attempt.
    server.config.write_text(server.settings.text() + world.site(NAMES[1]))
    server.signal(signal.SIGHUP)
    for name in NAMES:
        world.wait_for(name)
    assert world.fetch() == 200


def test_a_name_that_cannot_be_checked_holds_up_no_other(world: World) -> None:
    world.authority(86_400)
    # Pebble refuses names of this kind by its configuration of blocked domains.
    server = world.serve("tls-alpn-01", "blocked-domain.example", NAMES[1])
    world.wait_for(NAMES[1])
    assert world.certificate("blocked-domain.example") is None
    assert "blocked-domain.example" in server.log()
