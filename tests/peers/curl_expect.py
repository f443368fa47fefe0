#!/usr/bin/env python3
"""HTTP/3 by curl: posts a body that waits for `100 (Continue)`, and reports the status lines that came, in order."""

import hashlib

from curl_cffi import Curl, CurlHttpVersion, CurlInfo, CurlOpt
from peer_arguments import Arguments, parse, show

BODY = b"x" * 100_000


def post(arguments: Arguments, path: str) -> dict:
    """One request on a connection of its own."""
    lines: list[bytes] = []
    body = bytearray()
    curl = Curl()
    curl.setopt(CurlOpt.URL, f"https://{arguments.name}:{arguments.port}{path}".encode())
    curl.setopt(CurlOpt.RESOLVE, [f"{arguments.name}:{arguments.port}:{arguments.host}"])
    curl.setopt(CurlOpt.HTTP_VERSION, CurlHttpVersion.V3ONLY)
    curl.setopt(CurlOpt.CAINFO, arguments.ca.encode())
    curl.setopt(CurlOpt.HTTPHEADER, [b"Expect: 100-continue"])
    curl.setopt(CurlOpt.POSTFIELDS, BODY)
    # Without word it would send after a second.
    curl.setopt(CurlOpt.EXPECT_100_TIMEOUT_MS, int(1000 * arguments.timeout))
    curl.setopt(CurlOpt.TIMEOUT_MS, int(1000 * arguments.timeout))
    curl.setopt(CurlOpt.HEADERFUNCTION, lambda line: lines.append(line) or len(line))
    curl.setopt(CurlOpt.WRITEFUNCTION, lambda piece: body.extend(piece) or len(piece))
    curl.perform()
    sent = curl.getinfo(CurlInfo.SIZE_UPLOAD_T)
    curl.close()
    statuses = [int(line.split()[1]) for line in lines if line.startswith(b"HTTP/")]
    return {"path": path, "statuses": statuses, "sent": sent, "body": body.decode()}


def main(arguments: Arguments) -> None:
    """Asks for each path."""
    show([{**post(arguments, path), "sha256": hashlib.sha256(BODY).hexdigest()} for path, _ in arguments.requests])


if __name__ == "__main__":
    main(parse())
