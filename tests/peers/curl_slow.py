#!/usr/bin/env python3
"""One download by curl at a limited rate, over HTTP/3, HTTP/2 or HTTP/1.1. Prints `under way` when the first octets have come."""

import argparse
import hashlib
import json

from curl_cffi import CurlHttpVersion, CurlOpt, requests

VERSIONS = {"3": CurlHttpVersion.V3ONLY, "2": CurlHttpVersion.V2TLS, "1.1": CurlHttpVersion.V1_1}


def main() -> None:
    """Downloads."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("connect", "name", "ca", "path", "version"):
        parser.add_argument(f"-{name}", required=True)
    parser.add_argument("-rate", type=int, required=True, help="octets a second")
    arguments = parser.parse_args()
    host, port = arguments.connect.rsplit(":", 1)
    options = {
        CurlOpt.RESOLVE: [f"{arguments.name}:{port}:{host}"],
        CurlOpt.MAX_RECV_SPEED_LARGE: arguments.rate,
    }
    version = VERSIONS[arguments.version]
    digest, length = hashlib.sha256(), 0

    def take(chunk: bytes) -> int:
        nonlocal length
        if length == 0:
            print("under way", flush=True)
        digest.update(chunk)
        length += len(chunk)
        return len(chunk)

    session = requests.Session(http_version=version, verify=arguments.ca, curl_options=options)
    with session:
        answer = session.get(
            f"https://{arguments.name}:{port}{arguments.path}", timeout=300, content_callback=take, accept_encoding=None
        )
    print(json.dumps({"status": answer.status_code, "bytes": length, "sha256": digest.hexdigest()}))


if __name__ == "__main__":
    main()
