"""`Expect: 100-continue` (RFC 9110, section 10.1.1): who waits is told to go on, or answered instead."""

import json
from pathlib import Path

import pytest
from harness import origins
from harness.lab import Lab
from harness.paths import CLIENTS, HOST, LIMIT, PEERS, PORT
from harness.server import address

SIZE = 100_000
RULE = 'origin = "http://127.0.0.1:8001"\n[[site.rule]]\npath = "/nobody"\nallow = ["192.0.2.0/24"]\n'


def curl(lab: Lab, certificates: Path, folder: Path, version: str, path: str) -> tuple[list[int], int, str]:
    """The statuses that came in order, the octets of the body that went, and what came for them, with curl over TCP."""
    body = folder / "body"
    body.write_bytes(b"x" * SIZE)
    words = ["curl", "-sS", f"--http{version}", "--cacert", certificates / "ca.pem", "-D", folder / "heads"]
    words += ["--connect-to", f"{HOST}:{PORT}:{lab.server['ipv4']}:{PORT}", "--max-time", LIMIT]
    # For so long it waits for word, of which HTTP/2 has none.
    words += ["-H", "expect: 100-continue", "--expect100-timeout", "0.1" if version == "2" else LIMIT]
    words += ["--data-binary", f"@{body}"]
    words += ["-o", folder / "answer", "-w", "%{size_upload}", f"https://{HOST}:{PORT}{path}"]
    sent = int(lab.run("client", *map(str, words)))
    lines = (folder / "heads").read_text().splitlines()
    statuses = [int(line.split()[1]) for line in lines if line.startswith("HTTP/")]
    return statuses, sent, (folder / "answer").read_text()


def curl_h3(lab: Lab, certificates: Path, path: str) -> tuple[list[int], int, str]:
    """The same over HTTP/3."""
    program = [PEERS / "venv/bin/python", CLIENTS / "curl_expect.py"]
    flags = ["-connect", address(lab.server["ipv4"]), "-name", HOST, "-ca", certificates / "ca.pem", "-paths", path]
    (answer,) = json.loads(lab.run("client", *program, *flags, "-timeout", str(LIMIT)))["responses"]
    return answer["statuses"], answer["sent"], answer["body"]


@pytest.mark.parametrize("version", ["1.1", "2", "3"])
def test_a_client_that_waits_is_told_to_go_on_or_answered_instead(
    make_lab, make_server, certificates: Path, tmp_path: Path, version: str
) -> None:
    lab = make_lab()
    make_server(lab, mode="udp", root=None, site=RULE)

    def post(path: str) -> tuple[list[int], int, str]:
        if version == "3":
            return curl_h3(lab, certificates, path)
        return curl(lab, certificates, tmp_path, version, path)

    with origins.telling(lab, 8001):
        statuses, sent, text = post("/taken")
    assert (statuses, sent) == ([200] if version == "2" else [100, 200], SIZE)
    told = json.loads(text)
    assert told["bytes"] == SIZE and "expect" not in told["fields"]
    statuses, sent, _ = post("/nobody")
    assert statuses == [403] and (sent == 0 or version == "2")
