"""The guests: which devices, which kernel, which tests."""

from dataclasses import dataclass, field

from devices import VIRTIO_MODULES, ZERO_COPY, on_hub, on_taps

CONFORMANCE = "conformance --ignored --test-threads=1"
GATEWAY = "pytest /expressway/tests/guest/inside/test_gateway.py"
RECV = "pytest /expressway/tests/guest/inside/test_recv.py"
GEN = "pytest /expressway/tests/guest/inside/test_gen.py"
DUMP = "pytest /expressway/tests/guest/inside/test_dump.py /expressway/tests/guest/inside/test_foreign.py"
AGENT = "pytest /expressway/tests/guest/inside/test_agent.py"

# Of what takes minutes there, one of each kind: captures of an interface, of a VLAN and of a bond.
BESIDE_TCPDUMP = "of_an_interface or two-tags-copy or (of_a_bond and hybrid)"


@dataclass(frozen=True)
class Bed:
    """A guest with two network devices that are wired to each other."""

    about: str
    flavour: str
    modules: list[str]
    devices: list[str]
    tests: list[str]
    queues: int = 1
    # Seconds that a test waits for what never comes.
    limit: int = 100
    # Seconds until a run that hangs is ended.
    deadline: float = 900
    # Whether it takes multi-queue taps of this machine, and therefore root.
    taps: bool = False
    # Whether it runs tests of tests/e2e on labs of its own, for what its kernel has and this machine's may not.
    end_to_end: bool = False
    # Whether it brings DPDK's testpmd.
    testpmd: bool = False
    # Integration tests of cargo that it brings, by name.
    programs: list[str] = field(default_factory=lambda: ["conformance"])
    # Programs of this machine that it brings, and the packages that have them.
    tools: dict[str, str] = field(default_factory=dict)
    # Whether its kernel has what tests ask for: what is skipped elsewhere fails there.
    has_all: bool = True
    memory: int = 1536


BEDS = {
    "virtio": Bed(
        about="virtio-net in zero-copy mode: the gateway, receiver, generator, conformance",
        flavour="cloud-amd64",
        modules=VIRTIO_MODULES,
        devices=on_hub(f"virtio-net-pci,{ZERO_COPY}", "virtio-net-pci,disable-legacy=on,romfile="),
        tests=[f"{GATEWAY} -k 'not queues'", RECV, GEN, f"{CONFORMANCE} device_zero_copy"],
    ),
    "virtio-more": Bed(
        about="virtio-net in zero-copy and copy mode: conformance in every mode, agents, captures",
        flavour="cloud-amd64",
        modules=VIRTIO_MODULES,
        devices=on_hub(f"virtio-net-pci,{ZERO_COPY}", "virtio-net-pci,disable-legacy=on,romfile="),
        tests=[f"{GATEWAY} -k 'not queues'", AGENT, RECV, GEN, DUMP, f"{CONFORMANCE} device_"],
        testpmd=True,
        # Minutes where nothing else runs; `make test-guest` has another guest beside it.
        deadline=2700,
    ),
    "screens": Bed(
        about="virtio-net in zero-copy mode, for pictures of `top`: scripts/screens.py",
        flavour="cloud-amd64",
        modules=VIRTIO_MODULES,
        devices=on_hub(f"virtio-net-pci,{ZERO_COPY}", "virtio-net-pci,disable-legacy=on,romfile="),
        tests=["python /expressway/tests/guest/inside/screens.py"],
        programs=[],
        tools={"tmux": "tmux"},
    ),
    "igb": Bed(
        about="igb, whose link bounces when XDP comes, with RSS over two queues",
        flavour="amd64",
        modules=["igb", "xsk_diag"],
        # Each on a bus of its own: their virtual functions claim the same slots.
        devices=["-device", "pcie-root-port,id=bus0,chassis=1", "-device", "pcie-root-port,id=bus1,chassis=2"]
        + on_hub("igb,bus=bus0,romfile=", "igb,bus=bus1,romfile="),
        tests=[
            # QEMU's igb takes UDP segmentation (USO) for IP fragmentation (net_tx_pkt_get_gso_type, QEMU 10).
            *(f"ethtool -K {name} tx-udp-segmentation off" for name in ("eth0", "eth1")),
            f"{CONFORMANCE} device_zero_copy",
            GATEWAY,
            AGENT,
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
        devices=on_taps(2, f"virtio-net-pci,{ZERO_COPY}", "virtio-net-pci,disable-legacy=on,romfile="),
        tests=[f"{CONFORMANCE} device_zero_copy", GATEWAY],
        queues=2,
        taps=True,
    ),
    "beside": Bed(
        about="what a distribution's kernel has: XDP dispatchers beside libxdp's own tool, bonds, VLANs, captures",
        flavour="cloud-amd64",
        modules=["veth", "bonding", "8021q", "af_packet"],
        devices=[],
        tests=[
            "pytest /expressway/tests/e2e/test_beside.py /expressway/tests/e2e/test_bond.py",
            "pytest /expressway/tests/e2e/test_vlan.py -k vlan_interface",
            f"pytest /expressway/tests/e2e/test_dump_beside_tcpdump.py -k '{BESIDE_TCPDUMP}'",
            "/expressway/bin/observe --test-threads=1",
            "pytest /expressway/tests/e2e/test_top_flows.py -k 'gateways_connections or live_frames'",
            "pytest /expressway/tests/e2e/test_xdp_reasons.py /expressway/tests/e2e/test_dump_sender.py",
            "pytest /expressway/tests/e2e/test_dump_redirects.py -k 'native and interface'",
            "pytest /expressway/tests/e2e/test_dump_reasons.py",
        ],
        end_to_end=True,
        # Those of captures: build machines may refuse the programs that they attach.
        programs=["observe"],
        # Beside other work a test of captures takes most of a minute there.
        deadline=3600,
        memory=3072,
    ),
    "captures": Bed(
        about="a distribution's kernel: captures of more interfaces, whose programs come and go, are killed, and see redirected frames",
        flavour="cloud-amd64",
        modules=["veth", "bonding", "8021q", "af_packet"],
        devices=[],
        tests=[
            f"pytest /expressway/tests/e2e/test_dump_beside_tcpdump.py -k 'not ({BESIDE_TCPDUMP})'",
            "pytest /expressway/tests/e2e/test_dump_redirects.py -k 'live or not_take'",
            "pytest /expressway/tests/e2e/test_dump_swaps.py -k top_counts",
            "pytest /expressway/tests/e2e/test_dump_beside_top.py -k 'two_captures or killed'",
        ],
        end_to_end=True,
        programs=[],
        deadline=2700,
        memory=3072,
    ),
    "edge": Bed(
        about="guard, balance, forward and serve in one dispatcher, and beside the kernel's routing and IPVS",
        flavour="cloud-amd64",
        modules=["veth", "bridge", "8021q", "ip_vs", "ip_vs_mh"],
        devices=[],
        tests=[
            "pytest /expressway/tests/e2e/test_beside_edge.py",
            "pytest /expressway/tests/e2e/test_edge_oracles.py -k 'not nftables'",
            "pytest /expressway/tests/e2e/test_forward.py -k refuses",
        ],
        deadline=1800,
        end_to_end=True,
        programs=[],
        tools={"ping": "iputils-ping", "curl": "curl", "ipvsadm": "ipvsadm"},
        memory=3072,
    ),
}
