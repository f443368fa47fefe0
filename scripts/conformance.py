#!/usr/bin/env python3
"""Puts the public tests for HTTP caches (https://cache-tests.fyi/, tests/peers/cache-tests) to caches on this machine.

    scripts/conformance.py run CACHE... [--only ID...] [--out FOLDER]   as root; expressway, nginx, varnish, squid, trafficserver
    scripts/conformance.py table [--check]                     docs/cache-conformance.md from what is in tests/conformance

`run` writes FOLDER/CACHE.json (tests/conformance by default). Each run has a network namespace of its own, with the suite's
server as the origin on port 8000 and the cache on port 8001 of its loopback; what it takes is in tests/peers/cache-tests
and scripts/peers cache_tests.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "target/peers/cache-tests"
RESULTS = ROOT / "tests/conformance"
PAGE = ROOT / "docs/cache-conformance.md"
REASONS = RESULTS / "reasons.json"
ORIGIN, CACHE = 8000, 8001
# Seconds until a server accepts connections.
LIMIT = 30

EXPRESSWAY = """
[server]
listen = ["127.0.0.1:4433"]
workers = 1
[io]
mode = "udp"
[tls]
certificate = "{folder}/cert.pem"
private_key = "{folder}/key.pem"
[[http]]
listen = "127.0.0.1:8001"
action = "serve"
[[site]]
hosts = ["cache.test"]
origin = "http://127.0.0.1:8000"
cache = {{ stale_if_error = "1h" }}
"""

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_body_temp_path {folder}/body; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi; proxy_temp_path {folder}/proxy;
  proxy_cache_path {folder}/cache levels=1:2 keys_zone=cache:8m max_size=1000m inactive=600m;
  server {{
    listen 127.0.0.1:8001;
    location / {{ proxy_pass http://127.0.0.1:8000; proxy_cache cache; proxy_cache_revalidate on; }}
  }}
}}
"""

VARNISH = """
vcl 4.1;
backend default { .host = "127.0.0.1"; .port = "8000"; }
"""

SQUID = """
http_port 8001 accel defaultsite=localhost no-vhost
cache_peer 127.0.0.1 parent 8000 0 no-query no-digest originserver default name=origin
http_access allow all
cache_peer_access origin allow all
cache_mem 64 MB
pid_filename {folder}/squid.pid
access_log none
cache_log {folder}/squid.log
coredump_dir {folder}
netdb_filename none
pinger_enable off
shutdown_lifetime 1 second
connect_retries 3
"""

TITLES = {
    "expressway": "Expressway",
    "nginx": "nginx",
    "varnish": "Varnish",
    "squid": "Squid",
    "trafficserver": "Traffic Server",
}
SETTINGS = {
    "expressway": "`stale_if_error = \"1h\"`",
    "nginx": "`proxy_cache_revalidate on`",
    "varnish": "`default_ttl=0 default_grace=0 default_keep=3600`",
    "squid": "accelerator, `cache_mem 64 MB`",
    "trafficserver": "`cache.required_headers` 1, no retries, all methods allowed",
}
KINDS = {"required": "Required", "optimal": "Optimal", "check": "Checks: how a cache behaves, neither right nor wrong"}

HEAD = """# Conformance of the cache

<!-- Made by `scripts/conformance.py table`. Do not edit. -->

The public tests for HTTP caches ([cache-tests.fyi](https://cache-tests.fyi/), npm `http-cache-tests` 0.4.5, {count} tests for shared
caches), over HTTP/1.1 on loopback, the suite's own server being the origin. `scripts/conformance.py run CACHE` repeats a run;
its results are in `tests/conformance`, and an end-to-end test fails if Expressway does not pass a test that it has passed there.
nginx is the one that scripts/nginx builds, the others are Debian 12's, all with the few settings that the suite's own runs have.
Caddy comes without a cache, so it has no column. The numbers are passed tests; a test whose premises did not come about, or that depends on one that
failed, has not passed.

"""

REST = """
## Required tests that Expressway does not pass

RFC 9111 (2022) is newer than these tests (2021). Later versions of the suite are not on npm.
"""


def version(*command: str | Path) -> str:
    """What a program says it is."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(\.\d+)*", done.stdout + done.stderr)
    return found[0] if found else "?"


class Caches:
    """Commands that start a cache whose files are in a folder, and its version."""

    @staticmethod
    def expressway(folder: Path) -> tuple[list[str | Path], str]:
        binary = Path(os.environ.get("EXPRESSWAY_BIN", ROOT / "target/debug/expressway")).resolve()
        subprocess.run([binary, "cert", "--host", "cache.test", "--out", folder], check=True, capture_output=True)
        config = folder / "expressway.toml"
        config.write_text(EXPRESSWAY.format(folder=folder))
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
        return [binary, "serve", "--config", config], commit.stdout.strip() or version(binary, "--version")

    @staticmethod
    def nginx(folder: Path) -> tuple[list[str | Path], str]:
        own = ROOT / "target/peers/nginx"
        binary = own if own.exists() else Path(shutil.which("nginx") or "nginx")
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
        command = [binary, "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"]
        return command, version(binary, "-v")

    @staticmethod
    def varnish(folder: Path) -> tuple[list[str | Path], str]:
        (folder / "default.vcl").write_text(VARNISH)
        settings = [word for key in ("ttl=0", "grace=0", "keep=3600") for word in ("-p", f"default_{key}")]
        command = ["varnishd", "-F", "-j", "none", "-a", "127.0.0.1:8001", "-f", folder / "default.vcl", "-n", folder / "work"]
        return [*command, *settings, "-s", "malloc,64M"], version("varnishd", "-V")

    @staticmethod
    def squid(folder: Path) -> tuple[list[str | Path], str]:
        (folder / "squid.conf").write_text(SQUID.format(folder=folder))
        shutil.chown(folder, "proxy")
        return ["squid", "-f", folder / "squid.conf", "-N"], version("squid", "-v")

    @staticmethod
    def trafficserver(folder: Path) -> tuple[list[str | Path], str]:
        etc = folder / "etc"
        shutil.copytree("/etc/trafficserver", etc)
        (etc / "remap.config").write_text("map / http://127.0.0.1:8000/\n")
        with (etc / "records.config").open("a") as records:
            for name, value in {
                "http.server_ports": "STRING 8001",
                "http.cache.required_headers": "INT 1",
                "http.insert_age_in_response": "INT 1",
                "http.connect_attempts_max_retries": "INT 0",
                "http.uncacheable_requests_bypass_parent": "INT 1",
                "http.cache.ignore_client_cc_max_age": "INT 0",
            }.items():
                records.write(f"CONFIG proxy.config.{name} {value}\n")
        (etc / "ip_allow.yaml").write_text("ip_allow:\n  - {apply: in, ip_addrs: 0/0, action: allow, methods: ALL}\n")
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, "trafficserver")
        environment = [f"PROXY_CONFIG_CONFIG_DIR={etc}", f"PROXY_CONFIG_LOCAL_STATE_DIR={folder}"]
        return ["env", *environment, "traffic_server"], version("traffic_server", "--version")


NAMES = [name for name in vars(Caches) if not name.startswith("_")]


@contextlib.contextmanager
def running(command: list[str | Path], port: int, log: Path, env: dict[str, str] | None = None) -> Iterator[None]:
    """A server that listens on that port."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **(env or {})}, cwd=log.parent)
    try:
        deadline = time.monotonic() + LIMIT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{command[0]} does not listen on {port}: {log.read_text()}")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure(name: str, only: list[str]) -> dict:
    """What the suite says of a cache. In a namespace of its own already."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="conformance-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        command, what = getattr(Caches, name)(folder)
        origin = ["node", "node_modules/http-cache-tests/server/server.mjs"]
        settings = {"protocol": "http", "port": str(ORIGIN), "pidfile": str(folder / "origin.pid")}
        env = {f"npm_config_{key}": value for key, value in settings.items()}
        origin[1] = str(SUITE / origin[1])
        with running(origin, ORIGIN, folder / "origin.log", env), running(command, CACHE, folder / "cache.log"):
            client = ["node", "--no-warnings", SUITE / "run.mjs", f"http://127.0.0.1:{CACHE}", *only]
            done = subprocess.run(client, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr + (folder / "cache.log").read_text())
    return {
        "version": what,
        "date": datetime.date.today().isoformat(),
        "kernel": platform.release(),
        "tests": [json.loads(line) for line in done.stdout.splitlines()],
    }


def run(names: list[str], only: list[str], out: Path) -> None:
    """Each cache in a namespace of its own, one after another."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        command = ["unshare", "--net", sys.executable, __file__, "inside", name, "--only", *only]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        report = json.loads(done.stdout)
        tests = report.pop("tests")
        lines = ",\n".join("    " + json.dumps(test) for test in tests)
        head = json.dumps(report)[1:-1]
        (out / f"{name}.json").write_text(f"{{\n  {head},\n  \"tests\": [\n{lines}\n  ]\n}}\n")
        passed = sum(test["verdict"] == "pass" for test in tests)
        print(f"{name}: {passed} of {len(tests)} tests passed", file=sys.stderr)


def results() -> dict[str, dict]:
    """What is committed, in the order of the page."""
    files = {name: RESULTS / f"{name}.json" for name in NAMES}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def row(cells: list[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """docs/cache-conformance.md."""
    caches = results()
    ours = caches["expressway"]["tests"]
    reasons = json.loads(REASONS.read_text())
    passed = {
        name: {test["id"] for test in report["tests"] if test["verdict"] == "pass"} for name, report in caches.items()
    }
    titles = [TITLES[name] for name in caches]
    text = HEAD.format(count=len(ours))
    text += row(["cache", "version", "settings", "date", "kernel"]) + "|---|---|---|---|---|\n"
    for name, report in caches.items():
        text += row([TITLES[name], report["version"], SETTINGS[name], report["date"], report["kernel"]])
    for kind, what in KINDS.items():
        tests = [test for test in ours if test["kind"] == kind]
        text += f"\n## {what}\n\n"
        text += row(["group", "tests", *titles]) + "|---|" + "--:|" * (len(titles) + 1) + "\n"
        groups = dict.fromkeys(test["group"] for test in tests)
        for group in [*groups, None]:
            members = {test["id"] for test in tests if group in (test["group"], None)}
            counts = [str(len(members & passed[name])) for name in caches]
            text += row([group or "**all**", str(len(members)), *counts])
    text += REST
    failed = {test["id"]: test for test in ours if test["kind"] == "required" and test["verdict"] != "pass"}
    told = {test for reason in reasons for test in reason["tests"]}
    if told != set(failed):
        sys.exit(f"{REASONS}: without a reason: {sorted(set(failed) - told)}; passed: {sorted(told - set(failed))}")
    for reason in reasons:
        names = ", ".join(f"`{test}`" for test in reason["tests"])
        text += f"\n* {names}: {reason['reason']}\n"
    return text


def table(check: bool) -> int:
    """Writes the page, or says whether it is what it would be."""
    text = page()
    if check:
        if PAGE.read_text() == text:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not what scripts/conformance.py table makes", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


def main() -> None:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    orders = parser.add_subparsers(dest="order", required=True)
    for order in ("run", "inside"):
        command = orders.add_parser(order)
        command.add_argument("cache", nargs="+", choices=NAMES)
        command.add_argument("--only", nargs="*", default=[], help="tests by id")
        command.add_argument("--out", type=Path, default=RESULTS)
    orders.add_parser("table").add_argument("--check", action="store_true", help="fail if the page is not up to date")
    told = parser.parse_args()
    match told.order:
        case "run":
            run(told.cache, told.only, told.out)
        case "inside":
            json.dump(measure(told.cache[0], told.only), sys.stdout)
        case "table":
            sys.exit(table(told.check))


if __name__ == "__main__":
    main()
