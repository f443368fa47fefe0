"""Servers that share keys: what one made, the other takes, while the keys move on."""

import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from harness import clients
from harness.keys import Shared
from harness.lab import Lab
from harness.namespace import run_inside
from harness.paths import BINARY, CLIENTS, HOST, LIMIT, LONG_CLIP, PEERS, PORT, open_to_all, run
from harness.server import Server, address

NOBODY = 65534
# RFC 9000, section 20.1: INVALID_TOKEN.
INVALID_TOKEN = 0x0B
URLS = """[[site.rule]]
path = "/small.txt"
token = { shared_keys = true }
"""


def version(server: Server) -> int:
    """Of the keys that a server has."""
    return int(server.metrics().sum("shared_keys_version"))


def wait_version(server: Server, wanted: int) -> None:
    """Waits until a server has taken a document."""
    server.wait_for(f"version {wanted}", lambda metrics: metrics.sum("shared_keys_version") == wanted)


def ask(lab: Lab, connect: str, *more: str | Path, early: bool = False) -> dict:
    """A handshake and a request by aioquic. It never sends again what it sent by 0-RTT before a Retry packet."""
    command = [PEERS / "venv/bin/python", CLIENTS / "aioquic_tls.py", "-connect", connect, "-name", HOST]
    return json.loads(lab.run("client", *map(str, [*command, *more, *(["-early"] if early else [])])))


def listen(lab: Lab) -> str:
    """Where the first server of a lab is."""
    return address(lab.server["ipv4"])


@contextmanager
def relay(lab: Lab, first: str, second: str) -> Iterator[str]:
    """Where a client connects whose second packet goes to another server than the first."""
    words = [PEERS / "venv/bin/python", CLIENTS / "retry_relay.py", "-first", first, "-second", second]
    command = lab.inside("client", *map(str, words))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().split()[1]
            assert process.stdout.readline() == "retry\n", "nobody sent a Retry packet"
        finally:
            process.terminate()


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    """A first document."""
    return Shared(tmp_path / "shared")


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """Another certificate, with another private key, for the same name."""
    folder = tmp_path / "stranger"
    run([BINARY, "cert", "--host", HOST, "--out", folder])
    return folder


def test_a_session_of_one_server_resumes_at_another(make_lab, make_server, shared: Shared, stranger: Path, tmp_path: Path) -> None:
    labs = [make_lab(), make_lab()]
    session = tmp_path / "session"
    early = {"quic": {"early_data": "true"}}
    second = shared.copy(tmp_path / "second")
    one = make_server(labs[0], mode="udp", more=shared.more(**early))
    two = make_server(labs[1], mode="udp", more=second.more(**early), certificates=stranger)

    def resumed(server: Server) -> tuple[bool, bool]:
        found = ask(server.lab, listen(server.lab), "-session", session, early=True)
        assert found["status"] == 404
        return found["resumed"], found["early"]

    assert resumed(one) == (False, False)
    assert resumed(two) == (True, True)
    assert resumed(one) == (True, True)
    # One is ahead by a rotation, then the other.
    for ahead, behind, server, other in ((shared, second, one, two), (second, shared, two, one)):
        wait_version(server, ahead.rotate())
        assert version(other) < version(server)
        assert resumed(server)[0] and resumed(other)[0] and resumed(server)[0]
        ahead.distribute(behind)
        wait_version(other, version(server))
    # Two rotations at once are one too many.
    assert resumed(one)[0]
    second.rotate()
    wait_version(two, second.rotate())
    assert resumed(two) == (False, False)
    # Without shared keys nothing of it works.
    three = make_server(labs[0], mode="udp", certificates=stranger, listen=[address(labs[0].server["ipv4"], PORT + 1)], admin=9181)
    assert not ask(labs[0], three.ready[0].listen, "-session", session)["resumed"]


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_sessions_over_tcp_resume_at_another_server(make_lab, make_server, shared: Shared, stranger: Path, tmp_path: Path, protocol: str) -> None:
    """By OpenSSL."""
    lab = make_lab()
    second = shared.copy(tmp_path / "second")
    places = [(lab.server["ipv4"], PORT + number) for number in range(2)]
    one = make_server(lab, mode="udp", more=shared.more(), listen=[address(*places[0])])
    two = make_server(lab, mode="udp", more=second.more(), listen=[address(*places[1])], certificates=stranger, admin=9181)
    for server, place in zip((one, two), places, strict=True):
        server.wait_tcp([address(*place)])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}[protocol]
    session: ssl.SSLSession | None = None

    def reused(place: tuple[str, int]) -> bool:
        nonlocal session
        with context.wrap_socket(socket.create_connection(place, LIMIT), server_hostname=HOST, session=session) as connection:
            connection.sendall(f"GET /small.txt HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n".encode())
            answer = b""
            while more := connection.recv(65536):
                answer += more
            assert answer.startswith(b"HTTP/1.1 200 ") and connection.version() == protocol
            session = connection.session
            return bool(connection.session_reused)

    ask_of = lambda number: run_inside(lab.client_namespace, lambda: reused(places[number]))  # noqa: E731
    assert [ask_of(0), ask_of(1), ask_of(0)] == [False, True, True]
    wait_version(two, second.rotate())
    assert [ask_of(1), ask_of(0)] == [True, True]
    # TLS 1.2 goes on with a ticket whose key is not old yet: that of the first rotation.
    second.rotate()
    wait_version(two, second.rotate())
    assert not ask_of(1)


def test_a_retry_token_of_one_server_is_taken_by_another(make_lab, make_server, shared: Shared, stranger: Path, tmp_path: Path) -> None:
    lab = make_lab()
    places = [address(lab.server["ipv4"], PORT + number) for number in range(3)]
    second = shared.copy(tmp_path / "second")
    retry = {"quic": {"retry": '"always"'}}
    one = make_server(lab, mode="udp", more=shared.more(**retry), listen=places[:1])
    two = make_server(lab, mode="udp", more=second.more(**retry), listen=places[1:2], certificates=stranger, admin=9181)

    def through(first: str, other: str) -> dict:
        with relay(lab, first, other) as where:
            return ask(lab, where)

    for first, other in ((0, 1), (1, 0)):
        assert through(places[first], places[other])["status"] == 404
    # The clients' addresses were proven to the other server.
    assert [server.metrics().sum("retries_sent_total") for server in (one, two)] == [1, 1]
    assert [server.metrics().sum("connections_accepted_total") for server in (one, two)] == [1, 1]
    wait_version(two, second.rotate())
    for first, other in ((0, 1), (1, 0)):
        assert through(places[first], places[other])["status"] == 404, "a rotation apart"
    wait_version(two, second.rotate())
    assert through(places[0], places[1]) == {"error": INVALID_TOKEN}, "two rotations apart"
    assert two.metrics().sum("refused_invalid_token_total") == 1


def test_keys_rotate_under_load_and_nothing_is_lost(make_lab, make_server, shared: Shared, stranger: Path, certificates: Path, tmp_path: Path) -> None:
    labs = [make_lab(), make_lab()]
    second = shared.copy(tmp_path / "second")
    settings = {"quic": {"early_data": "true", "retry": '"always"'}}
    servers = [
        make_server(labs[0], mode="udp", more=shared.more(**settings), site=URLS),
        make_server(labs[1], mode="udp", more=second.more(**settings), site=URLS, certificates=stranger),
    ]
    under_way = clients.start(labs[0], listen(labs[0]), certificates, ["/long.mp4"], "-timeout", f"{LIMIT:.0f}s", "-packet-size", "1200")
    seen: list[dict] = []
    faults: list[Exception] = []
    done = threading.Event()
    url = "/small.txt?hdnts=" + signed(shared.show()["current"]["tokens"])

    def load() -> None:
        session = tmp_path / "session"
        try:
            while not done.is_set():
                for lab in labs:
                    seen.append(ask(lab, listen(lab), "-session", session, "-path", paths[0]))
        except Exception as fault:  # told by the test
            faults.append(fault)

    paths = [url]
    thread = threading.Thread(target=load)
    thread.start()
    try:
        for _ in range(5):
            count = len(seen)
            new = shared.rotate()
            wait_version(servers[0], new)
            # Some connections while only one of them is ahead, and some after.
            while len(seen) < count + 4 and not faults:
                done.wait(0.05)
            shared.distribute(second)
            wait_version(servers[1], new)
            paths[0] = "/small.txt?hdnts=" + signed(shared.show()["current"]["tokens"])
            while len(seen) < count + 8 and not faults:
                done.wait(0.05)
    finally:
        done.set()
        thread.join(LIMIT)
    assert not faults, faults
    assert len(seen) >= 40
    assert [found for found in seen if found.get("status") != 200] == []
    assert [found for found in seen[1:] if not found["resumed"]] == []
    for server in servers:
        metrics = server.metrics()
        assert metrics.sum("shared_keys_taken_total") == 6 and metrics.sum("shared_keys_good") == 1
        assert metrics.sum("refused_invalid_token_total") == 0
    report = clients.finish(under_way)
    (body,) = report["responses"]
    assert body["sha256"] == clients.sha256(LONG_CLIP)


def signed(key: str, fields: str = "exp=4102444800~acl=/small*") -> str:
    """A token as EdgeAuth has it."""
    return f"{fields}~hmac={hmac.new(bytes.fromhex(key), fields.encode(), hashlib.sha256).hexdigest()}"


def test_urls_are_signed_by_any_of_the_keys(make_lab, make_server, shared: Shared) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp", more=shared.more(), site=URLS)
    status = lambda key: ask(lab, listen(lab), "-path", f"/small.txt?hdnts={signed(key)}")["status"]  # noqa: E731
    first = shared.show()
    assert [status(first[name]["tokens"]) for name in ("current", "next")] == [200, 200]
    wait_version(server, shared.rotate())
    assert [status(first[name]["tokens"]) for name in ("current", "next")] == [200, 200]
    wait_version(server, shared.rotate())
    assert [status(first[name]["tokens"]) for name in ("current", "next")] == [403, 200]


def decrypted(cid: str, key: str) -> bytes:
    """Server ID and nonce of an ID, by the four passes of draft-ietf-quic-load-balancers-21, section 5.4."""
    block = Cipher(algorithms.AES(bytes.fromhex(key)), modes.ECB())  # noqa: S305, as the draft has it
    halves = [bytes.fromhex(cid)[1:7], bytes.fromhex(cid)[7:13]]
    for number in (4, 3, 2, 1):
        source, target = (1, 0) if number % 2 == 0 else (0, 1)
        text = halves[source].ljust(14, b"\0") + bytes([12, number])
        pad = block.encryptor().update(text)
        halves[target] = bytes(a ^ b for a, b in zip(halves[target], pad, strict=False))
    return b"".join(halves)


def test_connection_ids_are_encrypted_by_the_key_in_use(make_lab, make_server, shared: Shared) -> None:
    lab = make_lab()
    balancing = {"quic": {"load_balancing": '{ server_id = "c0000215", shared_keys = true }'}}
    server = make_server(lab, mode="udp", more=shared.more(**balancing))
    for _ in range(3):
        current = shared.show()["current"]
        cid = ask(lab, listen(lab), early=True)["cid"]
        assert int(cid[:2], 16) >> 5 == current["config"]
        assert decrypted(cid, current["connection_ids"])[:4].hex() == "c0000215"
        wait_version(server, shared.rotate())
        # A reload keeps the key.
        server.signal(signal.SIGHUP)
        server.wait_log("reload: done", current["config"] + 1)


def test_a_bad_document_is_refused_and_the_last_good_one_stays(make_lab, make_server, shared: Shared, tmp_path: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp", more=shared.more(), site=URLS)
    server.expect("of the shared keys: ")
    stranger = Shared(tmp_path / "other")
    first, good = shared.file.read_bytes(), version(server)
    status = lambda: ask(lab, listen(lab), "-path", f"/small.txt?hdnts={signed(key)}")["status"]  # noqa: E731
    key = shared.show()["current"]["tokens"]
    newer = shared.copy(tmp_path / "newer")
    wanted = newer.rotate()

    def put(contents: bytes, mode: int) -> None:
        beside = shared.file.with_suffix(".beside")
        beside.write_bytes(contents)
        beside.chmod(mode)
        beside.rename(shared.file)

    cases: list[tuple[str, Callable[[], None], str]] = [
        ("signature", lambda: put(stranger.file.read_bytes(), 0o640), "none of the signers made the signature"),
        ("format", lambda: put(newer.file.read_bytes()[:-40], 0o640), "the last line is not a signature: the file was cut off"),
        ("permissions", lambda: put(newer.file.read_bytes(), 0o644), "can be accessed by others (mode 644): run chmod o= on it"),
        ("unreadable", shared.file.unlink, "cannot be read: No such file"),
    ]
    for reason, spoil, words in cases:
        spoil()
        metrics = server.wait_for(reason, lambda m, r=reason: m.sum("shared_keys_refused_total", reason=r) == 1)
        assert metrics.sum("shared_keys_good") == 0 and version(server) == good
        assert f"keeping version {good} of the shared keys: {shared.file}: {words}" in server.log()
        assert status() == 200
    put(newer.file.read_bytes(), 0o640)
    wait_version(server, wanted)
    assert server.metrics().sum("shared_keys_good") == 1
    put(first, 0o640)
    server.wait_for("older", lambda m: m.sum("shared_keys_refused_total", reason="older") == 1)
    assert version(server) == wanted
    assert f"version {good} is older than {wanted}, which is in use" in server.log()
    # A reload goes on with the keys that there are.
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done")
    assert status() == 200 and version(server) == wanted


def test_a_server_without_privilege_follows_the_file(make_lab, make_server, readable: Path, shared: Shared, tmp_path: Path) -> None:
    lab = make_lab()
    os.chown(shared.file, 0, NOBODY)
    open_to_all(shared.folder)
    # By links into another folder, which is none of the configuration's.
    links = tmp_path / "links"
    links.mkdir()
    open_to_all(links)
    for file in (shared.file, shared.public):
        (links / file.name).symlink_to(file)
    keys = {"file": f'"{links}/shared.keys"', "signer": f'"{links}/signer.pub"'}
    server = make_server(lab, mode="udp", certificates=readable, more={"keys": keys, "server": {"user": '"nobody"'}})
    wait_version(server, shared.rotate())
    found = shared.file.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, NOBODY, 0o640), "a rotation keeps owner and mode"
    assert ask(lab, listen(lab))["status"] == 404


def test_a_secret_of_kubernetes_is_followed(make_lab, make_server, readable: Path, shared: Shared, tmp_path: Path) -> None:
    """As the kubelet writes it: files are links into a folder that is itself a link, which is replaced."""
    lab = make_lab()
    volume = tmp_path / "volume"
    volume.mkdir()

    def publish(name: str) -> None:
        data = Path(shutil.copytree(shared.folder, volume / name, ignore=shutil.ignore_patterns("signer.pem")))
        data.chmod(0o755)
        os.chown(data / "shared.keys", 0, NOBODY)
        (volume / "..new").symlink_to(name)
        (volume / "..new").rename(volume / "..data")

    publish("..1")
    for name in ("shared.keys", "signer.pub"):
        (volume / name).symlink_to(f"..data/{name}")
    open_to_all(volume)
    keys = {"file": f'"{volume}/shared.keys"', "signer": f'"{volume}/signer.pub"'}
    server = make_server(lab, mode="udp", certificates=readable, more={"keys": keys, "server": {"user": '"nobody"'}})
    for number in (2, 3):
        new = shared.rotate()
        publish(f"..{number}")
        wait_version(server, new)
    assert ask(lab, listen(lab))["status"] == 404


def test_the_command_makes_rotates_shows_and_verifies(shared: Shared, tmp_path: Path) -> None:
    def refused(*words: str | Path) -> tuple[int, str]:
        result = subprocess.run([str(word) for word in (BINARY, "keys", *words)], capture_output=True, text=True, check=False)
        assert result.stdout == "" and result.stderr.count("\n") == 1, result
        return result.returncode, result.stderr

    verify = lambda file, signer: refused("verify", file, "--signer", signer)  # noqa: E731
    # An independent implementation of Ed25519 finds the same.
    text = shared.file.read_text()
    body, signature = text.rsplit("# signature = ", 1)
    load_pem_public_key(shared.public.read_bytes()).verify(bytes.fromhex(signature.strip()), body.encode())
    assert (shared.file.stat().st_mode & 0o777, shared.signer.stat().st_mode & 0o777) == (0o640, 0o600)
    first = shared.show()
    assert set(first) == {"version", "current", "next"}
    assert shared.rotate() > first["version"]
    second = shared.show()
    assert (second["current"], second["previous"]) == (first["next"], first["current"])
    plain = run([BINARY, "keys", "show", shared.file, "--signer", shared.public])
    assert second["current"]["id"] in plain and second["current"]["tokens"] not in plain
    assert "good, version" in run([BINARY, "keys", "verify", shared.file, "--signer", shared.public])
    # Keys of OpenSSL sign too, and another signer takes over.
    heir, public = tmp_path / "heir.pem", tmp_path / "heir.pub"
    run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", heir])
    run(["openssl", "pkey", "-in", heir, "-pubout", "-out", public])
    assert verify(shared.file, public)[0] == 1
    code, words = refused("rotate", shared.file, "--signer", heir)
    assert code == 1 and "none of the signers made the signature" in words
    run([BINARY, "keys", "rotate", shared.file, "--signer", heir, "--former-signer", shared.public])
    assert "good" in run([BINARY, "keys", "verify", shared.file, "--signer", public])
    code, words = refused("new", "--out", shared.folder)
    assert code == 2 and "shared.keys: exists" in words
    # A public key that is there is another signer's: nothing is written.
    for files in ([shared.public], [shared.public, heir]):
        folder = tmp_path / f"foreign-{len(files)}"
        folder.mkdir()
        for file in files:
            shutil.copy(file, folder / ("signer.pub" if file is shared.public else "signer.pem"))
        code, words = refused("new", "--out", folder)
        assert code == 2 and "signer.pub: is not the public key of" in words
        assert len(list(folder.iterdir())) == len(files)
    (folder / "signer.pub").unlink()
    run([BINARY, "keys", "new", "--out", folder])
    assert "good" in run([BINARY, "keys", "verify", folder / "shared.keys", "--signer", public])
    shared.file.chmod(0o644)
    assert "run chmod o= on it" in verify(shared.file, public)[1]
    code, words = verify(shared.file, heir)
    assert code == 2 and "no Ed25519 public key" in words
    assert verify(tmp_path / "none", public) == (1, f"expressway: {tmp_path}/none: cannot be read: No such file or directory (os error 2)\n")


def test_rotations_at_once_come_one_after_another(shared: Shared) -> None:
    first = shared.show()["version"]
    words = [BINARY, "keys", "rotate", shared.file, "--signer", shared.signer, "--json"]
    processes = [subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    versions = {json.loads(process.communicate(timeout=LIMIT)[0])["version"] for process in processes}
    assert len(versions) == 8 and min(versions) > first
    assert shared.show()["version"] == max(versions)
    assert {file.name for file in shared.folder.iterdir()} == {"shared.keys", "signer.pem", "signer.pub"}


def test_a_reload_between_ticket_keys_and_shared_keys_leaves_tickets_as_they_are(make_lab, make_server, shared: Shared, tmp_path: Path) -> None:
    """Either takes a restart."""
    labs = [make_lab(), make_lab()]
    ring = tmp_path / "tickets"
    ring.write_bytes(os.urandom(80))
    of_file = {"tls": {"ticket_keys": f'"{ring}"'}}
    for lab, before, after in zip(labs, (of_file, shared.more()), (shared.more(), of_file), strict=True):
        server = make_server(lab, mode="udp", more=before)
        session = tmp_path / ("session-of-file" if before is of_file else "session-shared")
        resumed = lambda s=server, f=session: ask(s.lab, listen(s.lab), "-session", f)["resumed"]  # noqa: E731
        assert not resumed()
        server.settings.more = after
        server.config.write_text(server.settings.text())
        server.signal(signal.SIGHUP)
        server.wait_log("[keys] changed; takes effect after a restart")
        server.wait_log("reload: done")
        assert resumed() and resumed()


def test_mistakes_in_the_configuration_are_told(certificates: Path, root: Path, shared: Shared, tmp_path: Path) -> None:
    config = tmp_path / "edge.toml"
    section = f'[keys]\nfile = "{shared.file}"\nsigner = "{shared.public}"\n'
    start = f'[server]\nlisten = ["127.0.0.1:4433"]\n[tls]\ncertificate = "{certificates}/cert.pem"\nprivate_key = "{certificates}/key.pem"\n'
    site = f'[[site]]\nhosts = ["edge.test"]\nroot = "{root}"\n'

    def check(text: str) -> tuple[int, str]:
        config.write_text(text)
        result = subprocess.run([BINARY, "serve", "--config", config, "--check"], capture_output=True, text=True, check=False)
        return result.returncode, result.stderr

    assert check(start + section + site)[0] == 0
    balancing = "[quic.load_balancing]\nserver_id = \"c0\"\nshared_keys = true\n"
    for text, words in (
        (start + f'ticket_keys = "{shared.file}"\n' + section + site, "tls.ticket_keys: give ticket_keys or [keys], not both"),
        (start + site + URLS, "there is no [keys]"),
        (start + balancing + site, "there is no [keys]"),
        (start + section + balancing + "config = 1\n" + site, "leave out config and key_file"),
        (start + section + site + "[[site.rule]]\ntoken = { name = \"x\" }\n", "give keys, or shared_keys = true"),
        (start + section + site + f'[[site.rule]]\ntoken = {{ keys = "{shared.file}", shared_keys = true }}\n', "not both"),
        (start + section.replace("shared.keys", "none") + site, "none: cannot be read"),
        (start + section.replace("signer.pub", "signer.pem") + site, "signer.pem: no Ed25519 public key"),
    ):
        code, error = check(text)
        assert code == 2 and words in error and error.count("\n") == 1, error
