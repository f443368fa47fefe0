"""`expressway doctor` in labs: what it says of interfaces as they are, that it changes nothing unasked, and that it
mends what it is told to."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness import links
from harness.agent import CONTAINED
from harness.paths import BINARY, LIMIT, open_to_all

NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all")


def doctor(lab, *arguments: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs it in the server's namespace."""
    command = lab.inside("server", *prefix, BINARY, "doctor", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def report(lab, *arguments: str, prefix: Sequence[str] = ()) -> dict:
    """Its document."""
    result = doctor(lab, "--json", *arguments, prefix=prefix)
    return json.loads(result.stdout)


def finding(document: dict, check: str, interface: str | None = None) -> dict:
    """The worst finding of a check."""
    of = document["host"] if interface is None else interfaces(document)[interface]["findings"]
    order = ["ok", "note", "warn", "bad"]
    return max((one for one in of if one["check"] == check), key=lambda one: order.index(one["severity"]))


def interfaces(document: dict) -> dict[str, dict]:
    """The interfaces by name."""
    return {one["name"]: one for one in document["interfaces"]}


def modes(document: dict, interface: str = links.SERVER) -> dict[str, tuple]:
    """Whether each mode works, and how it receives and sends."""
    return {
        one["mode"]: (one["works"], one["receive"], one["transmit"])
        for one in interfaces(document)[interface]["modes"]
    }


def test_a_sound_interface(make_lab) -> None:
    lab = make_lab(queues=2)
    result = doctor(lab, "-i", links.SERVER)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.rstrip().endswith("No problems found.")
    assert max(map(len, result.stdout.splitlines())) <= 80
    document = report(lab)
    assert list(interfaces(document)) == [links.SERVER]
    facts = interfaces(document)[links.SERVER]["facts"]
    assert facts["driver"]["name"] == "veth"
    assert (facts["channels"]["rx"], facts["program"]) == (2, None)
    assert modes(document) == {
        "auto": (True, "copy", "gso-device"),
        "zerocopy": (False, None, None),
        "copy": (True, "copy", "copy"),
        "hybrid": (True, "copy", "gso-device"),
        "generic": (True, "copy", "copy"),
        "udp": (True, "kernel", "gso-device"),
    }


def test_trying_gives_what_the_driver_claims_and_leaves_nothing(make_lab) -> None:
    lab = make_lab(queues=2)
    claimed, tried = report(lab), report(lab, "--probe")
    assert modes(tried) == modes(claimed)
    of = {one["mode"]: one for one in interfaces(tried)[links.SERVER]["modes"]}
    assert all(one["tried"] for mode, one in of.items() if mode != "udp")
    assert "EOPNOTSUPP" in of["zerocopy"]["reason"]
    (step,) = of["auto"]["step_downs"]
    assert (step["from"], step["to"]) == ("zero-copy", "copy")
    assert "xdp" not in lab.run("server", "ip", "link", "show", links.SERVER)


def test_what_an_agent_would_give_is_tried_without_privilege(make_lab, start_agent, tmp_path: Path) -> None:
    lab = make_lab(queues=2)
    open_to_all(tmp_path)
    rule = f'name = "edge"\nusers = [65534]\nlisten = []\ninterfaces = ["{links.SERVER}"]\n'
    agent = start_agent(lab, rule)
    by_agent = ("--agent", str(agent.socket))
    document = report(lab, "--probe", *by_agent, prefix=CONTAINED)
    assert list(interfaces(document)) == [links.SERVER], "the agent's interfaces, not those around this process"
    assert modes(document) == modes(report(lab, "--probe")) and modes(document)["copy"][0]
    of = {one["mode"]: one for one in interfaces(document)[links.SERVER]["modes"]}
    assert all(one["tried"] for mode, one in of.items() if mode != "udp")
    assert str(agent.socket) in finding(document, "privileges")["text"]
    assert "xdp" not in lab.run("server", "ip", "link", "show", links.SERVER)
    refused = doctor(lab, *by_agent, "-i", "lo", prefix=CONTAINED)
    assert refused.returncode == 1 and "rule `edge`" in refused.stderr, refused.stderr
    assert doctor(lab, *by_agent, "--fix").returncode == 2


def test_gro_that_breaks_quic_is_mended_when_told(make_lab) -> None:
    lab = make_lab()
    features = ("rx-udp-gro-forwarding", "rx-gro-list")
    for feature in features:
        lab.run("server", "ethtool", "-K", links.SERVER, feature, "on")
    result = doctor(lab)
    assert result.returncode == 1
    for feature in features:
        command = f"ethtool -K {links.SERVER} {feature} off"
        assert f"$ {command}\n" in result.stdout
    assert "2 problems found" in result.stdout

    def state(feature: str) -> str:
        (line,) = [line for line in lab.run("server", "ethtool", "-k", links.SERVER).splitlines() if feature in line]
        return line.split()[1]

    assert {state(feature) for feature in features} == {"on"}, "nothing is changed unasked"
    result = doctor(lab, "--fix")
    assert result.returncode == 0, result.stdout
    assert "No problems found." in result.stdout
    for feature in features:
        assert f"fixed             ethtool -K {links.SERVER} {feature} off" in result.stdout
        assert state(feature) == "off"


def test_without_privilege_a_fix_fails_and_says_so(make_lab) -> None:
    lab = make_lab()
    lab.run("server", "ethtool", "-K", links.SERVER, "rx-gro-list", "on")
    result = doctor(lab, "--fix", prefix=NOBODY)
    assert result.returncode == 1
    assert "failed            ethtool -K" in result.stdout
    assert "Operation not permitted" in " ".join(result.stdout.split())
    document = report(lab, prefix=NOBODY)
    assert "CAP_BPF" in finding(document, "privileges")["text"]
    assert modes(document)["auto"] == (True, "kernel", "gso-device")
    assert modes(document)["copy"] == (False, None, None)


def test_a_program_on_the_interface_is_named_with_its_owner(make_lab, make_server) -> None:
    lab = make_lab()
    server = make_server(lab, mode="copy")
    found = finding(report(lab), "xdp", links.SERVER)
    assert found["severity"] == "note"
    assert "expressway_udp" in found["text"]
    assert f"({server.process.pid})" in found["text"] or "expressway (" in found["text"]
    # Nothing is tried over it.
    assert modes(report(lab, "--probe"))["copy"] == (False, None, None)
    assert "xdp" in lab.run("server", "ip", "link", "show", links.SERVER)


def test_links_that_are_no_devices(make_lab) -> None:
    lab = make_lab()
    links.ip(lab, "server", "link add bridge0 type bridge")
    links.ip(lab, "server", "link set bridge0 up")
    document = report(lab)
    assert modes(document, "bridge0")["copy"] == (False, None, None)
    assert modes(document, "bridge0")["auto"][:2] == (True, "kernel")
    links.ip(lab, "client", f"link set {links.CLIENT} down")
    assert finding(report(lab), "link", links.SERVER)["severity"] == "warn"


def test_wrong_usage(make_lab) -> None:
    lab = make_lab()
    result = doctor(lab, "-i", "nowhere0")
    assert result.returncode == 1
    assert result.stderr.strip() == (
        "expressway: interface nowhere0: no such interface in this network namespace; see `ip link`"
    )
    assert doctor(lab, "--nonsense").returncode == 2


def test_a_server_warns_of_what_doctor_finds(make_lab, make_server) -> None:
    lab = make_lab()
    lab.run("server", "ethtool", "-K", links.SERVER, "rx-udp-gro-forwarding", "on")
    server = make_server(lab, mode="auto")
    assert f"`ethtool -K {links.SERVER} rx-udp-gro-forwarding off`" in server.log()
