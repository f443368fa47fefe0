"""Changes to a lab's interfaces in the middle of things, as operators and hypervisors make them."""

from .lab import Lab

SERVER, CLIENT = "server0", "client0"


def ip(lab: Lab, role: str, arguments: str) -> str:
    """`ip ARGUMENTS` in the namespace of `role`."""
    return lab.run(role, "ip", *arguments.split())


def remove(lab: Lab) -> None:
    """Removes the veth pair; both ends go, with their addresses, routes and neighbours."""
    ip(lab, "server", f"link del {SERVER}")


def recreate(lab: Lab, queues: int = 2) -> None:
    """Makes the pair again under the same names, with the addresses that it had."""
    size = f"numrxqueues {queues} numtxqueues {queues}"
    ip(lab, "server", f"link add {SERVER} {size} type veth peer name {CLIENT} {size} netns {lab.client_namespace}")
    for role, name, addresses in (("server", SERVER, lab.server), ("client", CLIENT, lab.client)):
        lab.run(role, "ethtool", "-K", name, "gro", "on")
        ip(lab, role, f"link set {name} up")
        ip(lab, role, f"addr add {addresses['ipv4']}/24 dev {name}")
        ip(lab, role, f"addr add {addresses['ipv6']}/64 dev {name} nodad")


def set_channels(lab: Lab, count: int) -> None:
    """Sets the receive and transmit channels of both ends.

    An end with an XDP program never has fewer receive queues than its peer has transmit queues, or the kernel
    refuses.
    """
    ends = [("client", CLIENT, "tx"), ("server", SERVER, "tx"), ("server", SERVER, "rx"), ("client", CLIENT, "rx")]
    shown = lab.run("server", "ethtool", "-l", SERVER)
    grows = int(shown.split("RX:")[-1].split()[0]) < count
    for role, name, way in reversed(ends) if grows else ends:
        lab.run(role, "ethtool", "-L", name, way, str(count))


def set_mtu(lab: Lab, mtu: int) -> None:
    """Sets the MTU of both ends."""
    ip(lab, "server", f"link set {SERVER} mtu {mtu}")
    ip(lab, "client", f"link set {CLIENT} mtu {mtu}")
