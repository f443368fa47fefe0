#!/usr/bin/env python3
"""A connection after another by curl until the input ends: each asks twice, over HTTP/3, HTTP/2 and HTTP/1.1 by turns.

Prints how many there were and what failed.
"""

import argparse
import hashlib
import json
import sys
import threading

from curl_cffi import CurlHttpVersion, CurlOpt, requests

VERSIONS = [CurlHttpVersion.V3ONLY, CurlHttpVersion.V2TLS, CurlHttpVersion.V1_1]


def main() -> None:
    """Asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("connect", "name", "ca", "path", "sha256"):
        parser.add_argument(f"-{name}", required=True)
    arguments = parser.parse_args()
    host, port = arguments.connect.rsplit(":", 1)
    options = {CurlOpt.RESOLVE: [f"{arguments.name}:{port}:{host}"]}
    url = f"https://{arguments.name}:{port}{arguments.path}"
    told = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        told.set()

    threading.Thread(target=wait, daemon=True).start()
    made, failures = 0, []
    while not told.is_set() or made < len(VERSIONS):
        version = VERSIONS[made % len(VERSIONS)]
        made += 1
        try:
            with requests.Session(http_version=version, verify=arguments.ca, curl_options=options) as session:
                for _ in range(2):
                    answer = session.get(url, timeout=60, accept_encoding=None)
                    found = hashlib.sha256(answer.content).hexdigest()
                    if (answer.status_code, found) != (200, arguments.sha256):
                        failures.append(f"{made}: {answer.status_code}, {len(answer.content)} octets")
        except requests.RequestsError as error:
            failures.append(f"{made}: {error}")
    print(json.dumps({"connections": made, "failures": failures}))


if __name__ == "__main__":
    main()
