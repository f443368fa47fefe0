"""Plays cases by aioquic, each on a connection of its own, and tells what came of it."""

import concurrent.futures
import time
from typing import Any

import pylsqpack
from aioquic.buffer import Buffer, BufferReadError

from wire import Target, Wire

# Long past what a case that is answered takes.
WAIT = 30.0


def status(data: bytes) -> str | None:
    """The status of a response, once its header section is there."""
    buffer = Buffer(data=data)
    try:
        while True:
            kind = buffer.pull_uint_var()
            payload = buffer.pull_bytes(buffer.pull_uint_var())
            if kind == 1:
                _, fields = pylsqpack.Decoder(0, 0).feed_header(0, payload)
                return dict(fields)[b":status"].decode()
    except BufferReadError:
        return None


def outcome(wire: Wire) -> str | None:
    """What came of a case so far."""
    if wire.closed is not None:
        return str(wire.closed)
    if 0 in wire.resets:
        return f"reset {wire.resets[0]:#x}"
    if (found := status(bytes(wire.data.get(0, b"")))) is not None:
        return f"status {found}"
    return None


def act(wire: Wire, action: dict[str, Any]) -> None:
    """One action of a case."""
    match action["do"]:
        case "bytes":
            wire.write(action["stream"], bytes.fromhex(action["hex"]), action["fin"])
        case "reset":
            wire.quic.reset_stream(action["stream"], action["code"])
        case "answer":
            wire.until(lambda: outcome(wire) is not None, WAIT)
            wire.data.clear()
        case "frames":
            for frames in action["hex"]:
                payload = bytes.fromhex(frames)
                wire.payload(payload)
    wire.flush()


def play(target: Target, case: dict[str, Any]) -> str:
    """Plays a case and says what came of it."""
    wire = Wire(target, max_data=1 << 20, max_stream_data=1 << 20)
    wire.keeps = True
    try:
        handshake = case["handshake"]
        if "alpn" in handshake:
            wire.quic.configuration.alpn_protocols = handshake["alpn"]
        wire.open(WAIT)
        for action in case["actions"]:
            if wire.closed is None:
                act(wire, action)
        expected = case["expect"].split(" or ")
        # What else comes before that, such as a response, is passed over.
        if wire.until(lambda: outcome(wire) in expected, WAIT) and wire.closed is None:
            # And it is not closed behind that.
            wire.run(0.02)
        return outcome(wire) or "nothing"
    finally:
        if wire.closed is None:
            wire.quic.close(error_code=0x100)
            for data, _ in wire.quic.datagrams_to_send(now=time.monotonic()):
                wire.put(data)
        wire.close()


def play_all(target: Target, cases: list[dict[str, Any]]) -> dict[str, str]:
    """Plays all of them, some at a time: most of a case is waiting."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        played = pool.map(lambda case: play(target, case), cases)
        return dict(zip((case["name"] for case in cases), played, strict=True))
