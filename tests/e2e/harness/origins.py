"""Origins in the server's namespace: nginx, Caddy, and one in Python that says what it got. And a client for what they
answer over HTTP/3."""

import base64
import contextlib
import hashlib
import http.client
import http.server
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .lab import Lab
from .namespace import run_inside
from .paths import CLIENTS, HOST, LIMIT, PEERS
from .server import address

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; default_type text/plain; keepalive_timeout 60; server_tokens off;
  types {{ text/html html; video/mp4 mp4; }}
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi; client_max_body_size 1g;
  {servers}
}}
"""


class Process:
    """A server of somebody else's in a lab; `kill` ends it at once, `start` starts it again."""

    def __init__(self, lab: Lab, command: list[str | Path], port: int, log: Path) -> None:
        self.lab, self.command, self.port, self.log = lab, command, port, log
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it accepts connections."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.lab.inside("server", *self.command), stdout=log, stderr=log)
        deadline = time.monotonic() + LIMIT
        while not accepts(self.lab, self.port):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"port {self.port} stays closed: {self.log.read_text()}"
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self.process.kill()
        self.process.wait(LIMIT)


def accepts(lab: Lab, port: int) -> bool:
    """Somebody listens on that port of the server's loopback."""

    def attempt() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    return run_inside(lab.server_namespace, attempt)


def nginx(lab: Lab, folder: Path, port: int, servers: str) -> Process:
    """An nginx with these `server` blocks, the first of which listens on `port`."""
    folder.mkdir(exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, servers=servers))
    return Process(lab, ["nginx", "-p", folder, "-e", folder / "error.log", "-c", config], port, folder / "nginx.log")


def caddy(lab: Lab, folder: Path, port: int, sites: str) -> Process:
    """A Caddy with these sites, one of which listens on `port`."""
    folder.mkdir(exist_ok=True)
    config = folder / "Caddyfile"
    config.write_text(f"{{\n admin off\n auto_https off\n servers {{\n  protocols h1 h2 h2c\n }}\n}}\n{sites}\n")
    command = ["env", f"XDG_DATA_HOME={folder}", f"XDG_CONFIG_HOME={folder}", PEERS / "caddy"]
    return Process(lab, [*command, "run", "--adapter", "caddyfile", "--config", config], port, folder / "caddy.log")


class Telling(http.server.BaseHTTPRequestHandler):
    """Says what it got: method, target, fields, trailers, and a digest of the body. `?status=` is what it answers with,
    `?trailers` adds one."""

    protocol_version = "HTTP/1.1"

    def body(self) -> tuple[bytes, list[str]]:
        """The body, and the lines of its trailers."""
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0))), []
        body, trailers = bytearray(), []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        while line := self.rfile.readline().strip():
            trailers.append(line.decode().lower())
        return bytes(body), trailers

    def answer(self) -> None:
        body, trailers = self.body()
        sent = {name.lower(): value for name, value in self.headers.items()}
        report = {
            "method": self.command,
            "target": self.path,
            "fields": sent,
            "trailers": trailers,
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
        text = json.dumps(report).encode()
        status = int(self.path.rpartition("status=")[2].partition("&")[0]) if "status=" in self.path else 200
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Set-Cookie", "a=1")
        self.send_header("Set-Cookie", "b=2")
        self.send_header("Connection", "x-private")
        self.send_header("X-Private", "secret")
        if "trailers" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Trailer", "X-Sum")
            self.end_headers()
            self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n0\r\nX-Sum: 7\r\n\r\n")
            return
        is_bodyless = status in (204, 304)
        if not is_bodyless:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if not is_bodyless and self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_PROPFIND = answer

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def telling(lab: Lab, port: int) -> Iterator[None]:
    """The origin that says what it got, on that port."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = run_inside(lab.server_namespace, lambda: Server(("127.0.0.1", port), Telling))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(LIMIT)
        server.server_close()


@dataclass(frozen=True)
class Reply:
    """What one request got."""

    status: int
    headers: list[tuple[str, str]]
    trailers: dict[str, str]
    body: bytes
    bytes: int
    sha256: str
    reset: int | None = None

    def field(self, name: str) -> list[str]:
        """All values of a field."""
        return [value for key, value in self.headers if key.lower() == name]

    def told(self) -> dict:
        """The report of `Telling`."""
        return json.loads(self.body)


def job(lab: Lab, certificates: Path, requests: list[dict], **more: object) -> str:
    """What the client is told."""
    told = {"connect": address(lab.server["ipv4"]), "name": HOST, "ca": str(certificates / "ca.pem"), "requests": requests}
    return json.dumps({**told, **more})


def client(lab: Lab) -> subprocess.Popen[str]:
    """The client, which waits for its job."""
    command = lab.inside("client", PEERS / "venv/bin/python", CLIENTS / "aioquic_ask.py")
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def replies(process: subprocess.Popen[str], told: str | None = None) -> list[Reply]:
    """What a client got in the end."""
    out, err = process.communicate(told, timeout=2 * LIMIT)
    assert process.returncode == 0, err
    return [
        Reply(
            r["status"],
            [(name, value) for name, value in r["headers"]],
            dict(r["trailers"]),
            base64.b64decode(r["body"]),
            r["bytes"],
            r["sha256"],
            r["reset"],
        )
        for r in json.loads(out)
    ]


def ask(lab: Lab, certificates: Path, requests: list[dict], **more: object) -> list[Reply]:
    """Asks over HTTP/3."""
    return replies(client(lab), job(lab, certificates, requests, **more))


def ask_plainly(lab: Lab, port: int, requests: list[dict]) -> list[Reply]:
    """Asks the same of a server on the server's loopback over HTTP/1.1, each on a connection of its own."""

    def one(request: dict) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        body = request.get("body", "").encode() or bytes(request.get("size", 0)) or None
        fields = dict([("host", request.get("authority", HOST)), *request.get("headers", [])])
        method = request.get("method", "GET")
        connection.putrequest(method, request.get("path", "/"), skip_host=True, skip_accept_encoding=True)
        for name, value in fields.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        read = response.read()
        connection.close()
        headers = [(name.lower(), value) for name, value in response.getheaders()]
        return Reply(response.status, headers, {}, read, len(read), hashlib.sha256(read).hexdigest())

    def work() -> list[Reply]:
        return [one(request) for request in requests]

    return run_inside(lab.server_namespace, work)


def wait(what: str, true: Callable[[], bool]) -> None:
    """Waits until it is so."""
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, f"never so: {what}"
        time.sleep(0.02)
