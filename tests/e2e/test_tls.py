"""Certificates by name, tickets and certificates of clients, over QUIC."""

import json
import secrets
import shutil
import signal
from pathlib import Path

from harness.lab import Lab
from harness.paths import BINARY, CLIENTS, PEERS, run
from harness.server import Server, address

# CRYPTO_ERROR (RFC 9000, section 20.1) with an alert (RFC 8446, section 6).
UNRECOGNIZED_NAME = 0x100 + 112
CERTIFICATE_REQUIRED = 0x100 + 116


def certificate(folder: Path, *names: str) -> Path:
    """A folder with ca.pem, cert.pem and key.pem."""
    run([BINARY, "cert", *(word for name in names for word in ("--host", name)), "--out", folder])
    return folder


def section(folder: Path) -> str:
    """A [[certificate]]."""
    return f'[[certificate]]\ncertificate = "{folder}/cert.pem"\nprivate_key = "{folder}/key.pem"\n'


def handshake(lab: Lab, server: Server, name: str, *more: str | Path) -> dict:
    """What a client got that asks for a name."""
    command = [PEERS / "venv/bin/python", CLIENTS / "aioquic_tls.py", "-connect", address(lab.server["ipv4"])]
    return json.loads(lab.run("client", *map(str, [*command, "-name", name, *more])))


def write(server: Server, more: str) -> None:
    """The server's configuration, and more."""
    server.config.write_text(server.settings.text() + more)


def reload(server: Server, times: int) -> None:
    """SIGHUP, and its end."""
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done", times)


def test_each_name_has_its_certificate_also_after_a_reload(make_lab, make_server, tmp_path: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp")
    one = certificate(tmp_path / "one", "*.one.test", "one.test")
    two = certificate(tmp_path / "two", "two.test")
    names = lambda name: handshake(lab, server, name)["names"]  # noqa: E731
    assert names("one.test") == ["edge.test"]
    write(server, section(one))
    reload(server, 1)
    assert names("one.test") == names("a.one.test") == ["*.one.test", "one.test"]
    assert names("a.b.one.test") == names("two.test") == ["edge.test"]
    page = server.ask("/metrics")[1]
    assert 'expressway_certificate_expires_seconds{name="*.one.test",key="ecdsa"}' in page
    # A bad file leaves all as it was, and is named.
    server.expect("reload failed")
    shutil.copy(one / "key.pem", two / "key.pem")
    write(server, section(one) + section(two))
    server.signal(signal.SIGHUP)
    server.wait_log("reload failed")
    assert f"{two}/key.pem: the private key does not match" in server.log()
    assert names("one.test") == ["*.one.test", "one.test"]
    shutil.rmtree(two)
    certificate(two, "two.test")
    server.settings.more["tls"] = {"unknown_name": '"reject"'}
    write(server, section(one) + section(two))
    reload(server, 2)
    assert names("two.test") == ["two.test"]
    assert handshake(lab, server, "three.test") == {"error": UNRECOGNIZED_NAME}


def test_sessions_outlive_the_server_whose_ticket_keys_are_a_file(make_lab, make_server, tmp_path: Path) -> None:
    lab = make_lab()
    session, keys = tmp_path / "session", tmp_path / "tickets"
    current, following, last = (secrets.token_hex(80) for _ in range(3))
    resumed = lambda: handshake(lab, server, "edge.test", "-session", session)["resumed"]  # noqa: E731
    server = make_server(lab, mode="udp")
    assert not resumed()
    assert resumed()
    server.stop()
    keys.write_text(f'current = "{current}"\nnext = "{following}"\n')
    server = make_server(lab, mode="udp", more={"tls": {"ticket_keys": f'"{keys}"'}})
    assert not resumed(), "random keys are gone with their server"
    server.stop()
    server = make_server(lab, mode="udp", more={"tls": {"ticket_keys": f'"{keys}"'}})
    assert resumed()
    # The keys move on by one, as on another node: the session is renewed.
    keys.write_text(f'previous = "{current}"\ncurrent = "{following}"\nnext = "{last}"\n')
    reload(server, 1)
    assert resumed()
    keys.write_text(f'previous = "{following}"\ncurrent = "{last}"\n')
    reload(server, 2)
    assert resumed()
    server.expect("reload failed")
    keys.write_bytes(bytes(79))
    server.signal(signal.SIGHUP)
    server.wait_log(f"{keys}: 79 bytes")
    assert resumed(), "a bad file changes nothing"


def test_clients_show_certificates(make_lab, make_server, tmp_path: Path) -> None:
    lab = make_lab()
    known, unknown = certificate(tmp_path / "known", "alice.test"), certificate(tmp_path / "unknown", "bob.test")
    tls = {"client_ca": f'"{known}/ca.pem"', "client_auth": '"required"'}
    log = tmp_path / "access.log"
    server = make_server(lab, mode="udp", more={"tls": tls, "log": {"access": f'"{log}"'}})

    def shown(folder: Path) -> dict:
        files = ["-certificate", folder / "cert.pem", "-key", folder / "key.pem"]
        return handshake(lab, server, "edge.test", *files)

    assert handshake(lab, server, "edge.test") == {"error": CERTIFICATE_REQUIRED}
    assert "error" in shown(unknown)
    assert shown(known) == {"names": ["edge.test"], "resumed": False, "status": 404}
    server.stop()
    (record,) = map(json.loads, log.read_text().splitlines())
    assert record["client_subject"] == "CN=alice.test"
