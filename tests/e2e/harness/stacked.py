"""Labs whose two ends have their addresses on VLAN interfaces or bonds, as fixtures."""

import json
from collections.abc import Callable

import pytest

from . import kernel, links
from .lab import Lab, Unsupported


class OnVlan:
    """A lab whose two ends have addresses on a VLAN interface, of one tag or of two."""

    def __init__(self, lab: Lab, tags: list[int]) -> None:
        self.lab = lab
        self.name = ".".join(map(str, ["0", *tags]))
        self.hosts = [lab.server["vlan_ipv4"], lab.server["vlan_ipv6"]]

    def bytes(self, role: str, way: str) -> int:
        """What the VLAN interface of `role` sent ("tx") or received ("rx"), as its kernel counts."""
        (link,) = json.loads(links.ip(self.lab, role, f"-s -j link show {role}{self.name}"))
        return link["stats64"][way]["bytes"]


@pytest.fixture
def on_vlan(make_lab: Callable[..., Lab], request: pytest.FixtureRequest) -> OnVlan:
    """One, with the tags that the test names, outermost first; `stripped`: devices put them in and take them out."""
    tags, stripped = request.param
    (*service, customer) = tags
    try:
        lab = make_lab(vlan=customer)
    except Unsupported as error:
        kernel.lacks(str(error))
    # In the frame, where XDP sees them, is how the lab has 802.1Q.
    for role in ("server", "client") if stripped else ():
        lab.run(role, "ethtool", "-K", f"{role}0", "rxvlan", "on", "txvlan", "on")
    # Two tags: the addresses move to the same VLAN inside a service provider's (IEEE 802.1ad).
    for outer in service:
        for role, addresses in (("server", lab.server), ("client", lab.client)):
            device = f"{role}0.{outer}"
            lab.run(role, "ethtool", "-K", f"{role}0", "rx-vlan-stag-hw-parse", "off", "tx-vlan-stag-hw-insert", "off")
            links.ip(lab, role, f"link del {role}0.{customer}")
            # A device takes frames of its MTU with one tag.
            links.ip(lab, role, f"link add link {role}0 name {device} mtu 1496 type vlan protocol 802.1ad id {outer}")
            links.ip(lab, role, f"link add link {device} name {device}.{customer} type vlan id {customer}")
            links.ip(lab, role, f"link set {device} up")
            links.ip(lab, role, f"link set {device}.{customer} up")
            links.ip(lab, role, f"addr add {addresses['vlan_ipv4']}/24 dev {device}.{customer}")
            links.ip(lab, role, f"addr add {addresses['vlan_ipv6']}/64 dev {device}.{customer} nodad")
    return OnVlan(lab, tags)


@pytest.fixture
def bonded(make_lab: Callable[..., Lab]) -> Lab:
    """A lab with two links, bonded at both ends; `server0` and `client0` are the members in use."""
    lab = make_lab()
    links.ip(lab, "server", f"link add server1 type veth peer name client1 netns {lab.client_namespace}")
    for role, addresses in (("server", lab.server), ("client", lab.client)):
        try:
            links.ip(lab, role, "link add bond0 type bond mode active-backup miimon 100")
        except AssertionError as error:
            if "Unknown device type" not in str(error):
                raise
            kernel.lacks("this kernel has no bonding (CONFIG_BONDING)")
        for number in (0, 1):
            lab.run(role, "ethtool", "-K", f"{role}{number}", "gro", "on")
            links.ip(lab, role, f"addr flush dev {role}{number}")
            links.ip(lab, role, f"link set {role}{number} down")
            links.ip(lab, role, f"link set {role}{number} master bond0")
            links.ip(lab, role, f"link set {role}{number} up")
        links.ip(lab, role, f"link set bond0 type bond primary {role}0")
        links.ip(lab, role, "link set bond0 up")
        links.ip(lab, role, f"addr add {addresses['ipv4']}/24 dev bond0")
    return lab
