"""Orders that `expressway guard` takes by its admin listener, and what `expressway top` shows of it."""

import json

from harness.guard import ADMIN, answers, text
from harness.metrics import Metrics
from harness.paths import BINARY

ADDRESS = f"{ADMIN[0]}:{ADMIN[1]}"


def test_bans_by_order_begin_and_end(make_lab, make_guard) -> None:
    lab = make_lab()
    guard = make_guard(lab, text())
    client = lab.client["ipv4"]
    assert answers(lab)
    assert guard.ask("/bans") == (200, '{"bans":[],"complete":true}\n')
    assert guard.order("/ban", {"sources": [client, "2001:db8:1:2::9"], "for": "1h"}) == (200, '{"banned":2}\n')
    assert not answers(lab)
    bans = json.loads(guard.ask("/bans")[1])["bans"]
    assert sorted(one["source"] for one in bans) == sorted([client, "2001:db8:1:2::/64"])
    assert all(3500 < one["seconds"] <= 3600 for one in bans)
    # They go on through a reload, whatever the rules.
    guard.reload(text('drop_amplification = true'), "configuration reloaded")
    assert not answers(lab)
    assert guard.order("/unban", {"sources": [client, "192.0.2.1"]}) == (200, '{"unbanned":1}\n')
    assert answers(lab)
    assert guard.order("/unban", {"all": True}) == (200, '{"unbanned":1}\n')
    # One ends by itself.
    assert guard.order("/ban", {"sources": [client], "for": "1s"})[0] == 200
    guard.wait_status(lambda status: status["bans"] == 0 and answers(lab))
    assert Metrics(guard.ask("/metrics")[1]).sum("guard_packets_total", verdict="drop", reason="banned") >= 2


def test_orders_that_cannot_be_say_why(make_lab, make_guard) -> None:
    lab = make_lab()
    guard = make_guard(lab, text("bans = 2"))
    for order, says in [
        ({"sources": ["192.0.2.0/24"]}, "use a block list"),
        ({"sources": []}, "is empty"),
        ({"sources": ["192.0.2.1"], "for": "9000h"}, "1s to"),
        ({"sources": [f"192.0.2.{number}" for number in range(1, 9)]}, "not added: table full; raise `bans`"),
        ({}, "missing field"),
    ]:
        status, problem = guard.order("/ban", order)
        assert status == 400 and says in problem, problem
    assert guard.request("POST", "/ban", '{"sources": ["192.0.2.1"]}')[0] == 415
    assert guard.order("/attack", {"attack": "on"})[0] == 404, "nothing is learned"
    assert guard.order("/refresh", {}) == (200, '{"urls":0}\n')
    assert guard.ask("/healthz")[0] == 200


def test_top_shows_rules_reasons_and_bans(make_lab, make_guard) -> None:
    lab = make_lab()
    rules = '[[rule]]\nname = "ping"\nprotocol = "icmp"\naction = "drop"\n[[rule]]\nname = "idle"\nprotocol = "gre"\naction = "drop"\n'
    guard = make_guard(lab, text() + rules)
    assert not answers(lab)
    assert guard.order("/ban", {"sources": ["192.0.2.7"], "for": "1h"})[0] == 200
    guard.wait_status(lambda status: status["bans"] == 1)
    top = ("server", BINARY, "top", "--admin", ADDRESS, "--once", "--interval", "300ms")
    lines = lab.run(*top).splitlines()
    assert lines[0].startswith(f"guard {ADDRESS}  ")
    assert lines[1] == "on server0"
    assert "bans 1" in lines[2]
    names = [line.split("  ")[0] for line in lines]
    assert names.index("ping") < names.index("idle"), "what has dropped most comes first"
    assert "drop rule" in names
    assert max(len(line) for line in lines[: names.index("idle") + 1]) <= 80
    document = json.loads(lab.run(*top, "--json"))["guard"]
    ping = next(rule for rule in document["rules"] if rule["rule"] == "ping")
    assert ping["dropped"] == ping["packets"] >= 1
    assert document["tables"]["bans"] == 1
    assert document["interfaces"] == [{"interface": "server0", "attached": True}]
