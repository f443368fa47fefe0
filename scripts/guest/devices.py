"""A guest's network devices: two that are wired to each other, and what they need of this machine meanwhile."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from failure import Failure

# A guest IOMMU is what virtio wants for zero-copy: VIRTIO_F_ACCESS_PLATFORM makes it map by the DMA API
# (virtnet_xsk_pool_enable in drivers/net/virtio_net.c); without it a forced bind answers EINVAL.
ZERO_COPY = "iommu_platform=on,disable-legacy=on,romfile="
VIRTIO_MODULES = ["virtio_net", "xsk_diag"]
NAMESPACE = "expressway-guest-"


def on_hub(*devices: str) -> list[str]:
    """Two devices on an emulated hub: no interface of this machine is involved."""
    lines = []
    for number, device in enumerate(devices):
        lines += ["-netdev", f"hubport,id=hub{number},hubid=1", "-device", f"{device},netdev=hub{number}"]
    return lines


def on_taps(queues: int, *devices: str) -> list[str]:
    """Devices on the taps of `network`, which take checksums and segments that the guest left undone."""
    lines = []
    for number, device in enumerate(devices):
        tap = f"tap,id=tap{number},ifname=tap{number},script=no,downscript=no,vhost=off,queues={queues}"
        # A vector for each queue's both ways, one for control, one for changes of configuration.
        vectors = 2 * queues + 2
        lines += ["-netdev", tap, "-device", f"{device},mq=on,vectors={vectors},netdev=tap{number}"]
    return lines


@contextmanager
def network(taps: bool, multi_queue: bool = True) -> Iterator[Sequence[str]]:
    """Two bridged taps in a namespace, for as long as the guest runs; the command to start QEMU with."""
    if not taps:
        yield []
        return
    if os.geteuid() != 0:
        raise Failure("this guest needs tap devices in a namespace: run it as root")
    if not shutil.which("ip"):
        raise Failure("ip is missing: apt-get install iproute2")
    if not Path("/dev/net/tun").exists():
        raise Failure("/dev/net/tun is missing: this guest needs taps (modprobe tun)")
    _remove_leftovers()
    namespace = f"{NAMESPACE}{os.getpid()}"

    def ip(*words: str) -> None:
        result = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Failure(f"ip {' '.join(words)}: {result.stderr.strip()}")

    ip("netns", "add", namespace)
    try:
        ip("-n", namespace, "link", "add", "wire", "type", "bridge")
        ip("-n", namespace, "link", "set", "wire", "up")
        for name in ("tap0", "tap1"):
            kind = ["mode", "tap", *(["multi_queue"] if multi_queue else []), "vnet_hdr"]
            ip("-n", namespace, "tuntap", "add", name, *kind)
            ip("-n", namespace, "link", "set", name, "master", "wire", "up")
        yield ["ip", "netns", "exec", namespace]
    finally:
        subprocess.run(["ip", "netns", "del", namespace], check=False)


def _remove_leftovers() -> None:
    """Removes the namespaces of runs that were killed."""
    folder = Path("/run/netns")
    for entry in folder.glob(f"{NAMESPACE}*") if folder.exists() else ():
        owner = entry.name.removeprefix(NAMESPACE)
        if owner.isdigit() and not Path("/proc", owner).exists():
            subprocess.run(["ip", "netns", "del", entry.name], check=False)
