"""The guests: which devices, which kernel, which tests."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from failure import Failure

CONFORMANCE = "conformance --ignored --test-threads=1"
GATEWAY = "pytest /expressway/tests/guest/inside/test_gateway.py"
RECV = "pytest /expressway/tests/guest/inside/test_recv.py"
# A guest IOMMU is what virtio wants for zero-copy: VIRTIO_F_ACCESS_PLATFORM makes it map by the DMA API
# (virtnet_xsk_pool_enable in drivers/net/virtio_net.c); without it a forced bind answers EINVAL.
ZERO_COPY = "iommu_platform=on,disable-legacy=on,romfile="
VIRTIO_MODULES = ["virtio_net", "xsk_diag"]


@dataclass(frozen=True)
class Bed:
    """A guest with two network devices that are wired to each other."""

    about: str
    flavour: str
    modules: list[str]
    devices: list[str]
    tests: list[str]
    queues: int = 1
    # Seconds until a run that hangs is ended.
    deadline: float = 900
    # Whether it takes multi-queue taps of this machine, and therefore root.
    taps: bool = False
    # Whether it runs tests of tests/e2e on labs of its own, for what its kernel has and this machine's may not.
    end_to_end: bool = False
    memory: int = field(default=1536)


def _on_hub(*devices: str) -> list[str]:
    """Two devices on an emulated hub: no interface of this machine is involved."""
    lines = []
    for number, device in enumerate(devices):
        lines += ["-netdev", f"hubport,id=hub{number},hubid=1", "-device", f"{device},netdev=hub{number}"]
    return lines


def _on_taps(queues: int, *devices: str) -> list[str]:
    lines = []
    for number, device in enumerate(devices):
        tap = f"tap,id=tap{number},ifname=tap{number},script=no,downscript=no,vhost=off,queues={queues}"
        # A vector for each queue's both ways, one for control, one for changes of configuration.
        vectors = 2 * queues + 2
        lines += ["-netdev", tap, "-device", f"{device},mq=on,vectors={vectors},netdev=tap{number}"]
    return lines


BEDS = {
    "virtio": Bed(
        about="virtio-net in zero-copy and copy mode: conformance, the gateway and the receiver",
        flavour="cloud-amd64",
        modules=VIRTIO_MODULES,
        devices=_on_hub(f"virtio-net-pci,{ZERO_COPY}", "virtio-net-pci,disable-legacy=on,romfile="),
        tests=[f"{GATEWAY} -k 'not queues'", RECV, f"{CONFORMANCE} device_"],
    ),
    "igb": Bed(
        about="igb, whose link bounces when XDP comes, with RSS over two queues",
        flavour="amd64",
        modules=["igb", "xsk_diag"],
        # Each on a bus of its own: their virtual functions claim the same slots.
        devices=["-device", "pcie-root-port,id=bus0,chassis=1", "-device", "pcie-root-port,id=bus1,chassis=2"]
        + _on_hub("igb,bus=bus0,romfile=", "igb,bus=bus1,romfile="),
        tests=[
            # QEMU's igb takes UDP segmentation (USO) for IP fragmentation (net_tx_pkt_get_gso_type, QEMU 10).
            *(f"ethtool -K {name} tx-udp-segmentation off" for name in ("eth0", "eth1")),
            f"{CONFORMANCE} device_zero_copy",
            GATEWAY,
            "pytest /expressway/tests/guest/inside/test_rss.py",
        ],
        queues=2,
        # Each test bounces both links, and each bounce takes seconds.
        deadline=1800,
    ),
    "multiqueue": Bed(
        about="virtio-net with two queue pairs on multi-queue taps",
        flavour="cloud-amd64",
        modules=VIRTIO_MODULES,
        devices=_on_taps(2, f"virtio-net-pci,{ZERO_COPY}", "virtio-net-pci,disable-legacy=on,romfile="),
        tests=[f"{CONFORMANCE} device_zero_copy", GATEWAY],
        queues=2,
        taps=True,
    ),
    "beside": Bed(
        about="what a distribution's kernel has: XDP dispatchers beside libxdp's own tool, bonds, VLANs",
        flavour="cloud-amd64",
        modules=["veth", "bonding", "8021q"],
        devices=[],
        tests=[
            "pytest /expressway/tests/e2e/test_beside.py /expressway/tests/e2e/test_bond.py",
            "pytest /expressway/tests/e2e/test_vlan.py -k vlan_interface",
        ],
        end_to_end=True,
        memory=3072,
    ),
}


@contextmanager
def network(bed: Bed) -> Iterator[Sequence[str]]:
    """What a bed needs of this machine, for as long as it runs; the command to start QEMU with."""
    if not bed.taps:
        yield []
        return
    if os.geteuid() != 0:
        raise Failure("this guest needs taps in a namespace: run it as root")
    if not shutil.which("ip"):
        raise Failure("ip is missing: apt-get install iproute2")
    namespace = f"expressway-guest-{os.getpid()}"

    def ip(*words: str) -> None:
        result = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Failure(f"ip {' '.join(words)}: {result.stderr.strip()}")

    ip("netns", "add", namespace)
    try:
        ip("-n", namespace, "link", "add", "wire", "type", "bridge")
        ip("-n", namespace, "link", "set", "wire", "up")
        for name in ("tap0", "tap1"):
            ip("-n", namespace, "tuntap", "add", name, "mode", "tap", "multi_queue", "vnet_hdr")
            ip("-n", namespace, "link", "set", name, "master", "wire", "up")
        yield ["ip", "netns", "exec", namespace]
    finally:
        subprocess.run(["ip", "netns", "del", namespace], check=False)
