#!/usr/bin/env python3
"""Hostile clients for the end-to-end tests: `python hostile ATTACK -connect HOST:PORT -name HOST`.

`cases` prints the table of what may not be sent, `play` plays it and prints what came of each. An attack prints `attacking` once it is under way, goes on until its standard input ends, and prints what it has done and
seen as one JSON document.
"""

import argparse
import json
import logging
import os
import select
import sys
import threading
from functools import partial

import cases
import handshake
import listeners
import moq
import play
import streams
import tcp
import transport
from report import Report
from wire import Target

ATTACKS = {attack.__name__: attack for part in (streams, transport, handshake, listeners, tcp, moq) for attack in part.ATTACKS}
ATTACKS |= {f"costly_requests {name}": partial(streams.costly_requests, names=[name]) for name in streams.COSTLY}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("attack", choices=[*ATTACKS, "cases", "play"])
    parser.add_argument("-connect", default="", help="address and port of the server")
    parser.add_argument("-name", default="edge.test", help="host name for TLS and :authority")
    given = parser.parse_args()
    table = [case.document() for case in cases.table()]
    if given.attack == "cases":
        print(json.dumps(table))
        return
    host, port = given.connect.rsplit(":", 1)
    target = Target(host.strip("[]"), int(port), given.name)
    # aioquic tells of each close, of which there are thousands here.
    logging.disable(logging.CRITICAL)
    # Whatever happens to who started it, it ends.
    watchdog = threading.Timer(120, os._exit, (3,))
    watchdog.daemon = True
    watchdog.start()
    if given.attack == "play":
        print(json.dumps(play.play_all(target, table)))
        return
    report = Report()
    attack = ATTACKS[given.attack](target, report)
    next(attack)
    print("attacking", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        next(attack)
    attack.close()
    report.show()


if __name__ == "__main__":
    main()
