#!/usr/bin/env python3
"""Takes metrics over OTLP/HTTP in JSON, by OpenTelemetry's own messages, which know every field by its name and type.

Writes each request as a line of JSON, and answers as the messages say; what is no such request gets 400. With -mode silent it
accepts and never answers, with busy it answers 503. Prints `ready PORT` when it listens, and runs until it is ended.
"""

import argparse
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse


def main() -> None:
    """Serves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-out", required=True, type=Path)
    parser.add_argument("-mode", default="take", choices=("take", "silent", "busy"))
    arguments = parser.parse_args()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if arguments.mode == "silent":
                time.sleep(3600)
            status, answer = 200, MessageToJson(ExportMetricsServiceResponse()).encode()
            try:
                request = Parse(body, ExportMetricsServiceRequest())
            except ParseError as error:
                status, answer = 400, str(error).encode()
                print(error, flush=True)
            else:
                with arguments.out.open("a") as out:
                    out.write(MessageToJson(request, indent=None) + "\n")
            if arguments.mode == "busy":
                status = 503
            if (self.path, self.headers["content-type"]) != ("/v1/metrics", "application/json"):
                status = 404
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"ready {server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
