"""`expressway dump` and `top` on a real driver: what AF_XDP sockets send with no copy, as it arrives."""

import json
from pathlib import Path

import pytest
from harness import captures, xsk
from harness.captures import written
from harness.namespace import run_inside
from harness.paths import LIMIT
from harness.top import rows, tops
from taker import Taker, connected, generate

PORT, COUNT = 7000, 1000
# Asked for by tests that wait; not counted.
WARM_UP = 7001
MODES = {"zerocopy": "xsk zero-copy", "copy": "xsk copy"}


@pytest.mark.parametrize("mode", MODES)
def test_what_a_socket_sends_is_shown_as_it_arrives(lab, make_dump, tmp_path: Path, mode: str) -> None:
    connected(lab, WARM_UP)
    for size in (64, 1400):
        file, short = tmp_path / f"{size}.pcapng", tmp_path / f"{size}-short.pcapng"
        dump = make_dump("-w", file, f"udp dst port {PORT}")
        cut = make_dump("-w", short, "-s", "60", "-Q", "out")
        other = make_dump(f"udp dst port {PORT + 2}")
        taker = Taker(lab, PORT)
        with generate(lab, PORT, mode, COUNT, size) as process:
            frames = taker.take(1)
            sockets = lab.zero_copy_sockets()
            report = json.loads(process.communicate(timeout=LIMIT)[0])
        assert sockets == [mode == "zerocopy"] * lab.queues, sockets
        assert (report["io"], report["sent"], report["fallback"]) == (mode, COUNT, 0), report
        frames += taker.take(COUNT - 1)
        taker.close()
        assert dump.end() == len(frames) == COUNT
        packets = written(file)
        assert [data for data, _ in packets] == frames, "the octets that arrived, in their order"
        # Whose it is in zero-copy mode is looked up meanwhile: the first packets may be shown without.
        owned = f"{MODES[mode]}, pid {process.pid} "
        comments = [comment for _, comment in packets]
        # The program of the sender's own sockets comes meanwhile, which the next packet tells.
        bare = [comment for comment in comments if not comment.startswith(owned) and "gap: " not in comment]
        assert set(bare) <= ({MODES[mode]} if mode == "zerocopy" else set()), set(bare)
        assert comments[-1].startswith(owned), len(bare)
        cut.end()
        # IPv4 only: a socket is tried out with a frame of its own before use.
        shortened = [data for data, text in written(short) if ("xsk" in text or "gap: " in text) and data[12:14] == b"\x08\x00"]
        assert shortened == [frame[:60] for frame in frames]
        assert other.end() == 0
        seen = other.log().rsplit("; ", 1)[1].split(" seen")[0]
        assert int(seen) >= COUNT, other.log()


@pytest.mark.parametrize("mode", MODES)
def test_what_descriptors_ask_the_device_for_is_told(lab, make_dump, tmp_path: Path, mode: str) -> None:
    connected(lab, WARM_UP)
    flags = xsk.XDP_ZEROCOPY if mode == "zerocopy" else xsk.XDP_COPY
    sender = run_inside(lab.server_namespace, lambda: xsk.Xsk("server0", flags=flags, metadata=xsk.METADATA.size))
    try:
        assert lab.zero_copy_sockets() == [mode == "zerocopy"]
        file = tmp_path / "a.pcapng"
        dump = make_dump("-w", file, "udp port 50000")
        asked = {
            None: "",
            (0, 0, 0, 0): "",
            (xsk.CHECKSUM, 34, 6, 0): ", tx metadata checksum=34+6",
            (xsk.TIMESTAMP, 0, 0, 0): ", tx metadata timestamp",
            (xsk.CHECKSUM | xsk.TIMESTAMP | xsk.LAUNCH_TIME, 34, 6, 7): ", tx metadata checksum=34+6 timestamp launch=7",
        }
        for number, metadata in enumerate(asked):
            sender.send(captures.frame(number), metadata)
        assert dump.end() == len(asked)
        packets = written(file)
        assert [comment.split(", pid")[0] for _, comment in packets] == [MODES[mode] + text for text in asked.values()]
        assert [data for data, _ in packets] == [captures.frame(number) for number in range(len(asked))]
    finally:
        sender.close()


def test_top_counts_what_a_socket_sends_with_no_copy(lab, tmp_path: Path) -> None:
    connected(lab, WARM_UP)
    with tops(tmp_path) as make_top:
        top = make_top(lab, "server0")
        generate(lab, PORT, "zerocopy", COUNT, 200).communicate(timeout=LIMIT)

        def sent(document: dict) -> list[dict]:
            return [row["sent"]["af_xdp"] for row in rows(document, protocol="udp", remote_port=PORT)]

        document = top.wait_for(lambda document: sum(each["packets"] for each in sent(document)) >= COUNT, "all of them")
        assert sum(each["packets"] for each in sent(document)) == COUNT
        assert sum(each["bytes"] for each in sent(document)) == COUNT * (14 + 20 + 8 + 200)
