"""Who may ask the admin listener: unix sockets, tokens, and what `expressway top` and `trace` need to be let in."""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from harness import links
from harness.agent import NOBODY
from harness.fanout import FEED_PORT
from harness.guard import Guard
from harness.namespace import run_inside
from harness.paths import BINARY, LIMIT, open_to_all
from harness.server import Server

FIRST = "0123456789abcdef0123456789abcdef"
SECOND = "another-token-of-somebody-else"


class Local(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("anything.example", timeout=LIMIT)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT)
        self.sock.connect(str(self.path))


def ask(path: Path, page: str, token: str | None = None, order: object = None) -> tuple[int, str]:
    """What a listener at a unix socket answers."""
    connection = Local(path)
    fields = {"authorization": f"Bearer {token}"} if token else {}
    try:
        if order is None:
            connection.request("GET", page, headers=fields)
        else:
            connection.request("POST", page, json.dumps(order), {"content-type": "application/json", **fields})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def tokens(folder: Path, *lines: str) -> Path:
    """A file of tokens."""
    file = folder / "tokens"
    file.write_text("".join(f"{line}\n" for line in lines))
    file.chmod(0o600)
    return file


def top(*arguments: str | Path) -> subprocess.CompletedProcess:
    """`expressway top --once`, wherever it is told to look."""
    command = [BINARY, "top", "--once", "--interval", "100ms", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def until(what: str, true, limit: float = LIMIT) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + limit
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def unix_server(make_lab, make_server, path: Path, **keys: str) -> Server:
    """A server whose admin listener is a unix socket."""
    server = make_server(make_lab(), mode="udp", more={"admin": {"listen": f'"unix:{path}"', **keys}})
    assert path.is_socket()
    return server


def test_a_unix_socket_is_for_those_whom_its_rights_let_in(make_lab, make_server, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    # What a killed process has left.
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = unix_server(make_lab, make_server, path, socket_mode="0o620", socket_group=f'"{NOBODY}"')
    assert path.stat().st_mode & 0o777 == 0o620 and path.stat().st_gid == NOBODY
    assert ask(path, "/healthz") == (200, "ok\n")
    assert ask(path, "/config")[0] == 200
    # A second one is told that it is taken, and leaves it alone.
    other = subprocess.run(
        server.lab.inside("server", BINARY, "serve", "--config", server.config),
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )
    assert other.returncode == 1, other.stderr
    assert f"[admin] listen unix:{path}: another process is listening there" in other.stderr, other.stderr
    assert ask(path, "/healthz") == (200, "ok\n")
    shown = top("--admin", f"unix:{path}")
    assert shown.returncode == 0 and f"serve unix:{path}" in shown.stdout, shown.stderr + shown.stdout
    server.stop()
    assert not path.exists()


def test_a_token_is_asked_for_and_is_read_again(make_lab, make_server, tmp_path: Path) -> None:
    path, file = tmp_path / "admin.sock", tokens(tmp_path, "# of monitoring", FIRST, SECOND)
    server = unix_server(make_lab, make_server, path, token_file=f'"{file}"')
    assert ask(path, "/healthz") == (200, "ok\n")
    for page in ("/metrics", "/config", "/io", "/"):
        assert ask(path, page)[0] == 401 and ask(path, page, FIRST[:-1])[0] == 401
        assert ask(path, page, FIRST)[0] == 200 and ask(path, page, SECOND)[0] == 200
    assert ask(path, "/purge", None, {"all": True})[0] == 401
    assert "expressway_admin_unauthorized_total 9\n" in ask(path, "/metrics", FIRST)[1]
    # The clients of the same program.
    admin = ("--admin", f"unix:{path}")
    assert top(*admin, "--token-file", file).returncode == 0
    without = top(*admin)
    assert without.returncode == 1 and "requires a token: give --token-file" in without.stderr
    trace = subprocess.run(
        [BINARY, "trace", *admin, "--seconds", "1"], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert trace.returncode == 1 and "requires a token: give --token-file" in trace.stderr
    trace = subprocess.run(
        [BINARY, "trace", *admin, "--seconds", "1", "--json", "--token-file", file],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )
    assert trace.returncode == 0, trace.stderr
    # Changed while it runs; a file that is wrong leaves what was.
    tokens(tmp_path, "a-new-token-for-everybody")
    server.signal(signal.SIGHUP)
    until("the new one counts", lambda: ask(path, "/config", "a-new-token-for-everybody")[0] == 200)
    assert ask(path, "/config", FIRST)[0] == 401
    server.expect("admin tokens not reloaded", "reload failed, keeping the old configuration")
    tokens(tmp_path, "short")
    server.signal(signal.SIGHUP)
    server.wait_log("admin tokens not reloaded; keeping the earlier ones")
    assert ask(path, "/config", "a-new-token-for-everybody")[0] == 200
    tokens(tmp_path, FIRST)
    wrong = top(*admin, "--token-file", tokens(tmp_path, SECOND))
    assert wrong.returncode == 1 and "rejected the token" in wrong.stderr


def test_pages_that_are_open_take_none_and_names_do_not_count_with_one(make_lab, make_server, tmp_path: Path) -> None:
    keys = {"token_file": f'"{tokens(tmp_path, FIRST)}"', "open": '["/metrics"]'}
    server = make_server(make_lab(), mode="udp", more={"admin": keys})
    assert server.ask("/metrics")[0] == 200 and server.ask("/healthz")[0] == 401

    def by_name() -> list[int]:
        statuses = []
        for fields in ({}, {"authorization": f"Bearer {FIRST}"}):
            connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=LIMIT)
            connection.request("GET", "/config", headers={"host": "admin.example", **fields})
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
            connection.close()
        return statuses

    assert run_inside(server.lab.server_namespace, by_name) == [401, 200]


def test_a_confined_server_removes_its_socket_where_it_may(make_lab, make_server, readable: Path, tmp_path: Path) -> None:
    """The user may write to one folder of the two."""
    own, others = tmp_path / "own", tmp_path / "others"
    for folder in (own, others):
        folder.mkdir()
        open_to_all(folder)
    os.chown(own, NOBODY, NOBODY)
    file = tokens(own, FIRST)
    os.chown(file, NOBODY, NOBODY)
    root = tmp_path / "root"
    root.mkdir()
    open_to_all(root)
    for folder, stays in ((own, False), (others, True)):
        path = folder / "admin.sock"
        more = {
            "server": {"user": '"nobody"'},
            "admin": {"listen": f'"unix:{path}"', "token_file": f'"{file}"', "socket_mode": "0o666"},
        }
        server = make_server(make_lab(), mode="udp", certificates=readable, root=root, more=more)
        assert ask(path, "/config", FIRST)[0] == 200
        server.signal(signal.SIGHUP)
        server.wait_log("admin tokens reloaded")
        server.stop()
        assert path.exists() == stays


def test_a_fanout_has_the_same_by_arguments(make_lab, tmp_path: Path) -> None:
    path, file = tmp_path / "admin.sock", tokens(tmp_path, FIRST)
    lab = make_lab()
    command = lab.inside(
        "server", BINARY, "fanout", "--udp", f"{lab.server['ipv4']}:{FEED_PORT}", "--tcp", f"{lab.server['ipv4']}:7000",
        "--admin", f"unix:{path}", "--admin-token-file", file, "--admin-socket-mode", "600", "--admin-open", "/metrics",
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline().startswith("ready ")
        assert path.stat().st_mode & 0o777 == 0o600
        assert ask(path, "/metrics")[0] == 200 and ask(path, "/healthz")[0] == 401
        assert ask(path, "/subscribers")[0] == 401 and ask(path, "/subscribers", FIRST)[0] == 200
        shown = top("--admin", f"unix:{path}", "--token-file", file)
        assert shown.returncode == 0 and f"fanout unix:{path}" in shown.stdout
        tokens(tmp_path, SECOND)
        process.send_signal(signal.SIGHUP)
        until("the new one counts", lambda: ask(path, "/subscribers", SECOND)[0] == 200)
        assert ask(path, "/subscribers", FIRST)[0] == 401
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and not path.exists()


@pytest.mark.parametrize("at", ["unix", "tcp"])
def test_a_guard_takes_orders_with_a_token(make_lab, tmp_path: Path, at: str) -> None:
    path, file = tmp_path / "admin.sock", tokens(tmp_path, FIRST)
    lab = make_lab()
    listen = f"unix:{path}" if at == "unix" else "127.0.0.1:9190"
    text = f'interfaces = ["{links.SERVER}"]\n[admin]\nlisten = "{listen}"\ntoken_file = "{file}"\n'
    guard = Guard(lab, tmp_path / "guard", text)
    try:
        assert guard.ready.startswith("ready "), guard.log()

        def order(token: str | None) -> int:
            ban = {"sources": ["192.0.2.77"], "for": "1m"}
            if at == "unix":
                return ask(path, "/ban", token, ban)[0]
            fields = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
            return guard.request("POST", "/ban", json.dumps(ban), fields)[0]

        assert order(None) == 401 and order(SECOND) == 401
        assert order(FIRST) == 200
        tokens(tmp_path, SECOND)
        guard.signal(signal.SIGHUP)
        until("the new one counts", lambda: order(SECOND) == 200)
        assert order(FIRST) == 401
    finally:
        guard.stop()
    assert not path.exists()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('listen = "unix:"', "give a path, such as unix:/run/expressway/admin.sock"),
        ('listen = "localhost:80"', "neither an address such as"),
        ('listen = "127.0.0.1:9180"\nsocket_mode = 0o600', "remove `socket_mode`"),
        ('listen = "127.0.0.1:9180"\ntoken_file = "missing"', "missing cannot be read"),
        ('listen = "127.0.0.1:9180"\ntoken_file = "open"', "open can be accessed by others"),
        ('listen = "127.0.0.1:9180"\nopen = ["/config"]', "`/config` is not one of /healthz, /metrics"),
    ],
)
@pytest.mark.parametrize("command", ["guard", "forward", "balance", "relay"])
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, command: str, keys: str, says: str) -> None:
    heads = {
        "guard": 'interfaces = ["lo"]\n',
        "forward": 'interfaces = ["lo"]\n',
        "balance": '[[service]]\nlisten = "192.0.2.1:80"\nprotocol = "tcp"\n[[service.node]]\naddress = "192.0.2.2"\n',
        "relay": '[[room]]\nname = "a"\nrtp_in = "127.0.0.1:5004"\n',
    }
    (tmp_path / "open").write_text(FIRST)
    (tmp_path / "open").chmod(0o644)
    file = tmp_path / "a.toml"
    file.write_text(f"{heads[command]}[admin]\n{keys}\n")
    checked = subprocess.run(
        [BINARY, command, "--config", file, "--check"], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    line = heads[command].count("\n") + 2
    assert checked.returncode == 2 and says in checked.stderr, checked.stderr
    assert f"{file}:{line}" in checked.stderr or f"{file}:{line + 1}" in checked.stderr, checked.stderr
