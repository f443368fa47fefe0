"""What sites keep back and what their rules do, and access logs that nobody reads."""

import fcntl
import hashlib
import hmac
import os
import signal
import subprocess
from pathlib import Path

from harness import clients
from harness.paths import BINARY, LIMIT
from harness.server import address


def test_names_with_a_dot_are_served_only_where_the_site_says_so(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / ".well-known").mkdir(parents=True)
    for name in (".env", ".well-known/security.txt", "plain.txt"):
        (root / name).write_text(f"{name}\n")
    lab = make_lab()
    server = make_server(lab, mode="udp", root=root)
    paths = ["/.env", "/%2eenv", "/.none", "/.well-known/security.txt", "/plain.txt"]

    def statuses() -> list[int]:
        answers = clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, paths)
        return [answer.status for answer in answers]

    assert statuses() == [404, 404, 404, 200, 200]
    server.config.write_text(server.settings.text() + "hidden = true\n")
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done")
    assert statuses() == [200, 200, 404, 200, 200]


def test_a_log_that_nobody_reads_holds_up_no_worker_and_no_end(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    pipe, file, lonely = tmp_path / "pipe", tmp_path / "access.log", tmp_path / "lonely"
    os.mkfifo(pipe)
    os.mkfifo(lonely)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    try:
        lab = make_lab()
        server = make_server(lab, mode="udp", more={"log": {"access": f'"{pipe}"'}})
        server.expect("reload failed", "bytes of fields that were never read")
        connect = address(lab.server["ipv4"])
        open_client = clients.start(lab, connect, certificates, ["/clip.mp4"], "-pause")
        assert open_client.stdout and open_client.stdout.readline() == "paused\n"
        # More lines than the pipe takes: the log's thread is stuck in one of them, and leaves those that come.
        clients.fetch(lab, "quicgo", connect, certificates, ["/none"] * 40)
        for _ in range(20):
            (answer,) = clients.fetch(lab, "quicgo", connect, certificates, ["/none"])
            assert answer.status == 404
            if server.metrics().sum("access_log_queued_bytes") > 0:
                break
        else:
            raise AssertionError("the pipe takes every line")

        # One that cannot be opened without waiting for its reader changes nothing.
        server.settings.more["log"]["access"] = f'"{lonely}"'
        server.config.write_text(server.settings.text())
        server.signal(signal.SIGHUP)
        server.wait_log("this pipe has no reader")

        server.settings.more["log"]["access"] = f'"{file}"'
        server.config.write_text(server.settings.text())
        server.signal(signal.SIGHUP)
        server.wait_log("reload: done")
        # The last connection that has the former log ends on the worker.
        report = clients.finish(open_client, "\n")
        assert not report.get("error"), report
        (answer,) = clients.fetch(lab, "quicgo", connect, certificates, ["/clip.mp4"])
        assert answer.status == 200
        server.wait_for("it has ended", lambda m: m.sum("connections") == 0)
        (answer,) = clients.fetch(lab, "quicgo", connect, certificates, ["/clip.mp4"])
        assert answer.status == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log()
        assert f"access log {pipe}" in server.log() and "lost" in server.log()
        assert len(file.read_text().splitlines()) == 2
    finally:
        os.close(reader)


KEYS = ("00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100")


def token(key: str, fields: str) -> str:
    """A token as EdgeAuth has it."""
    signature = hmac.new(bytes.fromhex(key), fields.encode(), hashlib.sha256).hexdigest()
    return f"{fields}~hmac={signature}"


def test_rules_apply_and_are_reloaded_with_the_keys_of_tokens(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "vod").mkdir(parents=True)
    for name in ("vod/a.m4s", "new.txt", "404.html"):
        (root / name).write_text(f"content of {name}")
    keys = tmp_path / "token.keys"
    keys.write_text(f"{KEYS[0]}\n")
    rules = f"""error_pages = {{ 404 = "/404.html" }}
[[site.rule]]
path = "/old/*"
rewrite = "/*"
[[site.rule]]
path = "/moved/*"
redirect = "https://other.test/*"
[[site.rule]]
path = "/vod/*"
token = {{ keys = "{keys}" }}
[[site.rule]]
path = "/limited"
rate = {{ rate = "1/h", burst = 2 }}
[[site.rule]]
path = "/nobody/*"
allow = ["192.0.2.0/24"]
"""
    lab = make_lab()
    server = make_server(lab, mode="udp", root=root)

    def get(*paths: str) -> list[clients.Answer]:
        return clients.fetch(lab, "quicgo", address(lab.server["ipv4"]), certificates, paths)

    def statuses(*paths: str) -> list[int]:
        return [answer.status for answer in get(*paths)]

    server.config.write_text(server.settings.text() + rules)
    server.signal(signal.SIGHUP)
    server.wait_log("reload: done")
    plain = ("/old/new.txt", "/moved/a", "/%6doved/a", "/nobody/a", "/limited", "/limited", "/limited")
    assert statuses(*plain) == [200, 308, 308, 403, 404, 404, 429]
    (missing,) = get("/none")
    assert (missing.status, missing.sha256) == (404, clients.sha256(root / "404.html"))
    good, other = (f"/vod/a.m4s?hdnts={token(key, 'exp=4102444800~acl=/vod/*')}" for key in KEYS)
    past = f"/vod/a.m4s?hdnts={token(KEYS[0], 'exp=1700000000~acl=/vod/*')}"
    assert statuses(good, other, past, "/vod/a.m4s") == [200, 403, 403, 403]

    keys.write_text(f"{KEYS[1]}\n{KEYS[0]}\n")
    server.signal(signal.SIGHUP)
    server.expect("reload failed", "token.keys")
    server.wait_for("the new key", lambda _: statuses(good, other, past) == [200, 200, 403])
    keys.write_text("no key\n")
    server.signal(signal.SIGHUP)
    server.wait_log("token.keys:1: a key is 32 to 128 hexadecimal digits")
    assert statuses(good, other) == [200, 200], "what is wrong changes nothing"


def test_a_directory_is_served_without_a_configuration(make_lab, tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www/index.html").write_text("hello\n")
    lab = make_lab()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    serve = [str(BINARY), "serve", str(tmp_path / "www"), "--listen", f"{lab.server['ipv4']}:8443"]
    line = lab.inside("server", *serve)
    server = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        assert server.stdout.readline().startswith(f"ready listen={lab.server['ipv4']}:8443 io=udp")
        assert server.stdout.readline().startswith(f"ready tcp={lab.server['ipv4']}:8443")
        ca = tmp_path / "state/expressway/ca.pem"
        there = ["--connect-to", f"localhost:8443:{lab.server['ipv4']}:8443"]
        ask = ["curl", "--silent", "--show-error", "--cacert", ca, *there, "https://localhost:8443/"]
        assert lab.run("client", *ask) == "hello\n"
    finally:
        server.terminate()
        _, log = server.communicate(timeout=LIMIT)
    assert server.returncode == 0, log
    assert "https://localhost:8443/" in log and str(ca) in log
    nothing = [*serve[:2], str(tmp_path / "none")]
    missing = subprocess.run(nothing, capture_output=True, text=True, timeout=60, check=False)
    assert missing.returncode == 2 and "none: No such file or directory" in missing.stderr, missing.stderr
