#!/usr/bin/env python3
"""HTTP/3 by curl (ngtcp2 and nghttp3): the strictest of the clients. Falls back to nothing."""

import hashlib
import time

from curl_cffi import CurlHttpVersion, CurlOpt, requests
from peer_arguments import Arguments, parse, show


def main(arguments: Arguments) -> None:
    """Asks for everything on one connection."""
    options = {CurlOpt.RESOLVE: [f"{arguments.name}:{arguments.port}:{arguments.host}"]}
    responses = []
    session = requests.Session(http_version=CurlHttpVersion.V3ONLY, verify=arguments.ca, curl_options=options)
    with session:
        for path, span in arguments.requests:
            headers = {"Range": f"bytes={span}"} if span else {}
            url = f"https://{arguments.name}:{arguments.port}{path}"
            started = time.monotonic()
            answer = session.get(url, headers=headers, timeout=arguments.timeout, accept_encoding=None)
            assert answer.http_version == CurlHttpVersion.V3, f"not HTTP/3 but {answer.http_version}"
            responses.append(
                {
                    "path": path,
                    "range": span,
                    "status": answer.status_code,
                    "content_range": answer.headers.get("content-range", ""),
                    "seconds": time.monotonic() - started,
                    "bytes": len(answer.content),
                    "sha256": hashlib.sha256(answer.content).hexdigest(),
                }
            )
    show(responses)


if __name__ == "__main__":
    main(parse())
