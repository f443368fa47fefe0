"""Responses that are compressed on their way out, with clients that decode them and clients that do not read; what players say
in the log; whose certificate a request came with."""

import gzip
import hashlib
import json
import signal
import socket
import ssl
import time
from pathlib import Path

import pytest
from harness import origins
from harness.lab import Lab
from harness.namespace import run_inside
from harness.origins import ask
from harness.paths import HOST, LIMIT, PORT
from harness.server import address
from test_tcp import curl

TOLD = 8003
GZIP = ["accept-encoding", "gzip"]
# Of a file that is compressed whole, and of one that is not.
SHORT, LONG = 10_000, 400_000


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    root = tmp_path / "texts"
    root.mkdir()
    for name, lines in (("short.html", SHORT), ("long.html", LONG)):
        (root / name).write_text("".join(f"<p>{line * 7919 % 9973}</p>\n" for line in range(lines)))
    (root / "short.mp4").write_bytes((root / "short.html").read_bytes())
    # What was changed less than two seconds ago has another ETag later.
    time.sleep(2.5)
    return root


def test_files_over_http_3(make_lab, make_server, certificates: Path, texts: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp", root=texts, site="compress = true\n")
    for name in ("short.html", "long.html"):
        plain = (texts / name).read_bytes()
        for _ in range(2):
            (coded,) = ask(lab, certificates, [{"path": f"/{name}", "headers": [GZIP]}])
            assert coded.status == 200 and coded.field("content-encoding") == ["gzip"]
            assert coded.field("vary") == ["Accept-Encoding"] and coded.field("etag")[0].startswith('W/"')
            assert coded.bytes < len(plain) / 2
        # The client keeps the beginning.
        if name == "short.html":
            assert gzip.decompress(coded.body) == plain
        whole, part, head, none_match = ask(
            lab,
            certificates,
            [
                {"path": f"/{name}"},
                {"path": f"/{name}", "headers": [GZIP, ["range", "bytes=5-1004"]]},
                {"method": "HEAD", "path": f"/{name}", "headers": [GZIP]},
                {"path": f"/{name}", "headers": [GZIP, ["if-none-match", coded.field("etag")[0]]]},
            ],
        )
        assert whole.sha256 == hashlib.sha256(plain).hexdigest() and not whole.field("content-encoding")
        assert whole.field("vary") == ["Accept-Encoding"]
        assert part.status == 206 and part.body == plain[5:1005]
        assert head.bytes == 0 and head.field("content-encoding") == ["gzip"] and not head.field("content-length")
        assert none_match.status == 304 and none_match.field("etag") == coded.field("etag")
    (film,) = ask(lab, certificates, [{"path": "/short.mp4", "headers": [GZIP]}])
    assert film.sha256 == hashlib.sha256((texts / "short.mp4").read_bytes()).hexdigest()
    metrics = server.metrics()
    assert metrics.sum("responses_compressed_total") == 4 and metrics.sum("compressor_bytes") == 0
    assert 1 <= metrics.sum("files_compressed_total") <= 2, "a file that is new is not kept"


def test_curl_decodes_all_of_them(make_lab, make_server, certificates: Path, texts: Path) -> None:
    lab = make_lab()
    server = make_server(lab, mode="udp", root=texts, site="compress = true\n")
    server.wait_tcp([address(lab.server["ipv4"])])
    for name in ("short.html", "long.html"):
        plain = (texts / name).read_bytes()
        for version in ("1.1", "2"):
            for coding in ("zstd", "br", "gzip"):
                takes = ["--compressed", "-H", f"accept-encoding: {coding}"]
                code, fields, body = curl(lab, certificates, version, f"/{name}", *takes)
                assert (code, fields["content-encoding"], body == plain) == (200, coding, True)
            code, fields, _ = curl(lab, certificates, version, f"/{name}", "-I", "-H", "accept-encoding: br")
            assert (code, fields["content-encoding"]) == (200, "br") and "content-length" not in fields
            code, fields, body = curl(lab, certificates, version, f"/{name}", "-H", "accept-encoding: identity, *;q=0")
            assert "content-encoding" not in fields and body == plain


def test_an_origins_answers_and_what_players_say(make_lab, make_server, certificates: Path, tmp_path: Path) -> None:
    lab = make_lab()
    log = tmp_path / "access.log"
    site = f'compress = {{ min_length = 10 }}\norigin = "http://127.0.0.1:{TOLD}"\n'
    with origins.telling(lab, TOLD):
        more = {"log": {"access": f'"{log}"', "cmcd": "true"}}
        server = make_server(lab, mode="udp", root=None, site=site, more=more)
        server.wait_tcp([address(lab.server["ipv4"])])
        said = "/seg?CMCD=br%3D3200%2Cot%3Dv%2Csid%3D%22a%22%2Cd%3Dx"
        requests = [
            {"path": said, "headers": [GZIP]},
            {"path": "/t?trailers", "headers": [GZIP, ["te", "trailers"], ["cmcd-request", "bl=900,su"]]},
            {"path": "/none?status=404", "headers": [GZIP]},
            {"path": "/plain"},
        ]
        coded, trailing, none, plain = ask(lab, certificates, requests)
        for reply in (coded, trailing, none):
            assert reply.field("content-encoding") == ["gzip"] and not reply.field("content-length")
            assert json.loads(gzip.decompress(reply.body))["method"] == "GET"
        assert trailing.trailers == {"x-sum": "7"} and none.status == 404
        assert plain.told()["target"] == "/plain" and plain.field("vary") == ["Accept-Encoding"]
        for version in ("1.1", "2"):
            takes = ["--compressed", "-H", "accept-encoding: zstd"]
            _, fields, body = curl(lab, certificates, version, "/x", *takes)
            assert fields["content-encoding"] == "zstd" and json.loads(body)["target"] == "/x"
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log()
    records = {record["target"]: record for record in map(json.loads, log.read_text().splitlines())}
    assert records[said]["cmcd"] == {"br": 3200, "ot": "v", "sid": "a"}
    assert records["/t?trailers"]["cmcd"] == {"bl": 900, "su": True}
    assert "cmcd" not in records["/plain"] and records["/plain"]["upstream_status"] == 200


def test_the_subject_of_a_certificate_reaches_the_origin_and_nobody_can_claim_it(
    make_lab, make_server, certificates: Path, tmp_path: Path
) -> None:
    lab = make_lab()
    with origins.telling(lab, TOLD):
        server = make_server(
            lab,
            mode="udp",
            root=None,
            site='origin = "app"\n',
            more={"tls": {"client_ca": f'"{certificates}/ca.pem"', "client_auth": '"optional"'}},
            arrays=[
                "[[origin]]",
                'name = "app"',
                f'servers = ["http://127.0.0.1:{TOLD}"]',
                'client_subject = "x-client-subject"',
                'trust = ["0.0.0.0/0"]',
            ],
        )
        server.wait_tcp([address(lab.server["ipv4"])])
        claims = ["-H", "x-client-subject: CN=root", "-H", "x_client_subject: CN=root"]

        def told(*more: str) -> list[str]:
            _, _, body = curl(lab, certificates, "2", "/", *claims, *more)
            fields = json.loads(body)["fields"]
            return [value for name, value in fields.items() if name.replace("_", "-") == "x-client-subject"]

        assert told() == []
        shown = told("--cert", f"{certificates}/cert.pem", "--key", f"{certificates}/key.pem")
        assert len(shown) == 1 and shown[0].startswith("CN=") and "root" not in shown[0]


def test_clients_that_do_not_read_take_few_compressors(make_lab, make_server, certificates: Path, texts: Path) -> None:
    lab = make_lab()
    memory = {"server": {"memory": '"128MiB"'}, "files": {"cache": '"64MiB"'}}
    server = make_server(lab, mode="udp", root=texts, site="compress = true\n", more=memory)
    server.wait_tcp([address(lab.server["ipv4"])])
    (texts / "huge.html").write_bytes((texts / "long.html").read_bytes() * 20)
    host = lab.server["ipv4"]
    ask_for = f"GET /huge.html HTTP/1.1\r\nhost: {HOST}\r\naccept-encoding: br\r\n\r\n".encode()

    def attack() -> list[ssl.SSLSocket]:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        held = []
        for _ in range(60):
            plain = socket.socket()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.settimeout(LIMIT)
            plain.connect((host, PORT))
            connection = context.wrap_socket(plain, server_hostname=HOST)
            connection.sendall(ask_for)
            assert connection.recv(16).startswith(b"HTTP/1.1 200")
            held.append(connection)
        return held

    held = run_inside(lab.client_namespace, attack)
    metrics = server.metrics()
    assert metrics.sum("responses_compressed_total") + metrics.sum("compressions_refused_total") == 60
    assert metrics.sum("compressions_refused_total") >= 50
    assert 0 < metrics.sum("compressor_bytes") <= 8 << 20
    assert metrics.sum("memory_bytes") <= 128 << 20
    # Others are served: a short file compressed, a long one as it is.
    short, long = ask(lab, certificates, [{"path": path, "headers": [GZIP]} for path in ("/short.html", "/long.html")])
    assert short.field("content-encoding") == ["gzip"]
    assert long.sha256 == hashlib.sha256((texts / "long.html").read_bytes()).hexdigest()
    for connection in held:
        connection.close()
    server.wait_for("they have ended", lambda m: m.sum("compressor_bytes") == 0)
    (long,) = ask(lab, certificates, [{"path": "/long.html", "headers": [GZIP]}])
    assert long.field("content-encoding") == ["gzip"]
