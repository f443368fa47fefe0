"""The command line and the report that the Python clients share with the Go one."""

import argparse
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Arguments:
    """What to ask whom."""

    host: str
    port: int
    name: str
    ca: str
    timeout: float
    # Path and range; an empty range asks for the whole.
    requests: list[tuple[str, str]]


def parse() -> Arguments:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-connect", required=True, help="address and port of the server")
    parser.add_argument("-name", required=True, help="host name for TLS and :authority")
    parser.add_argument("-ca", required=True, help="PEM file of the CA")
    parser.add_argument("-paths", required=True, help="paths to GET, separated by commas")
    parser.add_argument("-ranges", default="", help="byte ranges to GET of the first path")
    parser.add_argument("-timeout", type=float, default=60.0, help="seconds for one request")
    given = parser.parse_args()
    host, port = given.connect.rsplit(":", 1)
    paths = given.paths.split(",")
    wanted = [(path, "") for path in paths]
    wanted += [(paths[0], span) for span in given.ranges.split(",") if span]
    return Arguments(host.strip("[]"), int(port), given.name, given.ca, given.timeout, wanted)


def show(responses: list[dict]) -> None:
    """Prints the report."""
    print(json.dumps({"responses": responses}))
