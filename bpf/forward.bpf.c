// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A router: sends packets on by the kernel's own tables (bpf_fib_lookup), and copies UDP feeds to receivers.
 *
 * Forwarded is what the kernel would forward without a second thought: to our MAC, well-formed, with time to live,
 * routed out of a configured interface to a known neighbour, within the MTU. Everything else passes to the kernel
 * unchanged, which answers by ICMP, resolves the neighbour, fragments, delivers or drops. So whatever this program
 * does not know is done right, only slower.
 *
 * Changed in a forwarded packet: Ethernet addresses, VLAN tags, TTL or hop limit, IPv4 header checksum.
 *
 * Flows are spread over several next hops as the kernel spreads them: the lookup is given what the kernel hashes
 * (addresses, protocol, ports, flow label). What it would hash otherwise passes: ICMP errors (by the packet within),
 * IPv6 extension headers (by what follows them).
 *
 * A copy is addressed when it leaves. The devmap of a feed has one entry a receiver, but the program of a devmap is
 * only told the device, and a device sends its frames in the order in which they were put in. So the datagram is
 * stamped, in place of its Ethernet addresses, with its plan and a number of its own, and forward_copy counts the copies
 * of that number: the n-th is the n-th receiver's behind that device. A device has one program for a whole bulk, so
 * where feeds are configured, forwarded frames go through forward_copy too, which leaves them alone.
 *
 * Linux 5.18 or newer (xdp.frags, bpf_xdp_load_bytes).
 */
#include "packet.h"
#include "forward_shared.h"
#include "xdp_drop.h"

/* Where the verifier asks for a check that cannot fail, since headers were read before: a frame that has been changed goes nowhere. */
#define FORWARD_IMPOSSIBLE FORWARD_COUNTERS

#define AF_INET 2
#define AF_INET6 10

/* IPv4 fragment offset, without the flags. */
#define IPV4_OFFSET 0x1fff
/* Shortest Ethernet frame, without its check sequence, with a tag that a switch may have added: padding ends here. */
#define PADDED 64
/* Hop limits that are not forwarded. */
#define LAST_HOP 1
/* ICMPv6 types below are errors (RFC 4443 section 2.1). */
#define ICMPV6_INFORMATION 128

/* Configured interfaces, by what the frames that are theirs look like. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FORWARD_PORTS);
	__type(key, struct forward_key);
	__type(value, struct forward_port);
} ports_map SEC(".maps");

/* Where packets may leave: by interface, as routes name them, the device that sends. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, FORWARD_PORTS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_devmap_val));
} devices_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FORWARD_PORTS);
	__type(key, __u32);
	__type(value, struct forward_output);
} outputs_map SEC(".maps");

/* The IPv4 addresses of this host: a set. The kernel takes no packet from them off the wire. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u8);
} locals_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FORWARD_PORTS + 1);
	__type(key, __u32);
	__type(value, struct forward_stats);
} stats_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FORWARD_FEEDS);
	__type(key, struct forward_listen);
	__type(value, struct forward_feed);
} feeds_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FORWARD_FEEDS);
	__type(key, __u32);
	__type(value, struct forward_traffic);
} feed_stats_map SEC(".maps");

/* By plan, the devices of its receivers: one entry a receiver, whatever its key. */
struct receivers {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, FORWARD_TARGETS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct bpf_devmap_val));
} receivers_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	/* Thrice: the plans before a change go with the change after it. */
	__uint(max_entries, 3 * FORWARD_FEEDS);
	__type(key, __u32);
	__array(values, struct receivers);
} plans_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 3 * FORWARD_TARGETS);
	__type(key, struct forward_target_key);
	__type(value, struct forward_target);
} targets_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FORWARD_TARGETS);
	__type(key, __u32);
	__type(value, struct forward_traffic);
} target_stats_map SEC(".maps");

/* By device. User space makes the entries. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, FORWARD_PORTS);
	__type(key, __u32);
	__type(value, struct forward_turn);
} turns_map SEC(".maps");

/* By device. User space makes the entries. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, FORWARD_PORTS);
	__type(key, __u32);
	__type(value, struct forward_egress);
} egress_stats_map SEC(".maps");

/* The number of the last datagram that was copied on this CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sequence_map SEC(".maps");

/* Carries the shared enums into BTF, and so into the skeleton. No instruction reads it. */
const struct forward_enums {
	enum forward_limit limit;
	enum forward_counter counter;
	enum forward_port_flag port;
	enum forward_output_flag output;
} forward_enums = {};

/* A frame up to its network header. */
struct frame {
	__u32 tags;    /* how many */
	__u32 network; /* offset of the IP header */
	__u32 length;
	__be16 ethertype;
	bool whole; /* in one buffer */
};

/* Who a frame is addressed to. */
enum station {
	OTHERS,
	US,
	GROUP,
};

/* Where a packet goes: what is left of the lookup. */
struct hop {
	__u32 tags[FORWARD_TAGS];
	__u8 smac[ETH_ALEN];
	__u8 dmac[ETH_ALEN];
};

/*
 * Bytes in the linear part. As whole pointers, and asked for early: a pointer to the packet that the compiler put aside as
 * 32 bits would be refused by the verifier.
 */
static __always_inline __u64 linear_length(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_end - (void *)(long)ctx->data;
}

static __always_inline bool is_vlan(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

/* Reads the Ethernet header and tags; false if there are too many, or the frame ends within. */
static __always_inline bool read_link(struct xdp_md *ctx, struct frame *frame, struct ethhdr *ethernet,
				      struct forward_key *key)
{
	struct vlan_tag tag;

	if (!read_ethernet(ctx, 0, ethernet))
		return false;
	frame->ethertype = ethernet->h_proto;
	frame->network = sizeof(*ethernet);
	for (int i = 0; i < FORWARD_TAGS; i++) {
		if (!is_vlan(frame->ethertype))
			break;
		if (!read_vlan(ctx, frame->network, &tag))
			return false;
		key->tags[i] = FORWARD_TAG(bpf_ntohs(frame->ethertype), bpf_ntohs(tag.control) & 0xfff);
		frame->ethertype = tag.ethertype;
		frame->network += sizeof(tag);
		frame->tags++;
	}
	return !is_vlan(frame->ethertype);
}

/* Addresses that no router sends on, as source or destination; network byte order. */
static __always_inline bool is_special_ipv4(__be32 address)
{
	__u32 host = bpf_ntohl(address);

	return host >> 24 == 0 || host >> 24 == 127 || host >> 29 == 7 || host >> 16 == 0xa9fe;
}

static __always_inline bool is_link_local_ipv6(const struct in6_addr *address)
{
	return (address->s6_addr32[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* The same as for IPv4: ::/96 with the unspecified and loopback, IPv4-mapped, link-local, multicast. */
static __always_inline bool is_special_ipv6(const struct in6_addr *address)
{
	const __be32 *words = address->s6_addr32;

	if (!words[0] && !words[1] && (!words[2] || words[2] == bpf_htonl(0xffff)))
		return true;
	return is_link_local_ipv6(address) ||
	       (words[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

/* The ones' complement sum of an IPv4 header without options, folded; 0xffff if its checksum is right. */
static __always_inline __u32 header_sum(const struct iphdr *ip)
{
	const __u16 *words = (const void *)ip;
	__u32 sum = 0;

	for (int i = 0; i < (int)sizeof(*ip) / 2; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Whether the kernel's flow dissector reads ports, or what lies in their place (skb_flow_get_ports). */
static __always_inline bool has_ports(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_DCCP:
	case IPPROTO_ESP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
	case IPPROTO_AH:
		return true;
	default:
		return false;
	}
}

/* What the kernel hashes and rules match beyond addresses. False if the packet ends before the ports. */
static __always_inline bool add_ports(struct xdp_md *ctx, struct bpf_fib_lookup *fib, __u8 protocol, __u32 offset,
				      __u32 end)
{
	struct udp_ports ports;

	fib->l4_protocol = protocol;
	if (!has_ports(protocol))
		return true;
	if (protocol == IPPROTO_AH)
		offset += 4;
	if (offset + sizeof(ports) > end || !read_ports(ctx, offset, &ports))
		return false;
	fib->sport = ports.source;
	fib->dport = ports.destination;
	return true;
}

static __always_inline bool is_icmp_error(struct xdp_md *ctx, __u8 protocol, __u32 offset)
{
	/* The reader that reads least: the type is the first byte. */
	struct extension_header icmp;

	if (protocol != IPPROTO_ICMP && protocol != IPPROTO_ICMPV6)
		return false;
	if (!read_extension(ctx, offset, &icmp))
		return true;
	if (protocol == IPPROTO_ICMPV6)
		return icmp.next < ICMPV6_INFORMATION;
	/* Destination unreachable, source quench, redirect, time exceeded, parameter problem. */
	return (icmp.next >= 3 && icmp.next <= 5) || icmp.next == 11 || icmp.next == 12;
}

static __always_inline enum forward_counter lookup_verdict(long code)
{
	switch (code) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return FORWARD_SENT;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
		return FORWARD_DROP_BLACKHOLE;
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return FORWARD_PASS_REFUSED;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return FORWARD_PASS_NOT_FORWARDED;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return FORWARD_PASS_DISABLED;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return FORWARD_PASS_TUNNEL;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return FORWARD_PASS_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return FORWARD_PASS_TOO_LARGE;
	default:
		return FORWARD_PASS_LOOKUP;
	}
}

/*
 * Whether an IPv4 source may come by this interface, as fib_validate_source (net/ipv4/fib_frontend.c) decides. Where
 * several next hops lead back, the lookup chooses one and strict mode may say no where the kernel says yes: the packet
 * passes, and the kernel forwards it.
 */
static __always_inline enum forward_counter check_source(struct xdp_md *ctx, const struct forward_port *port,
							 const struct iphdr *ip)
{
	struct bpf_fib_lookup back = {};
	long code;

	if (!(port->flags & (FORWARD_SOURCE_STRICT | FORWARD_SOURCE_LOOSE)))
		return bpf_map_lookup_elem(&locals_map, &ip->saddr) ? FORWARD_PASS_SOURCE : FORWARD_SENT;
	back.family = AF_INET;
	back.tos = ip->tos;
	back.ifindex = port->ifindex;
	/* To a group the kernel looks up without it (ip_mc_validate_source). */
	back.ipv4_src = bpf_ntohl(ip->daddr) >> 28 == 0xe ? 0 : ip->daddr;
	back.ipv4_dst = ip->saddr;
	code = bpf_fib_lookup(ctx, &back, sizeof(back), 0);
	if (code != BPF_FIB_LKUP_RET_SUCCESS && code != BPF_FIB_LKUP_RET_NO_NEIGH)
		return FORWARD_PASS_REVERSE_PATH;
	if (port->flags & FORWARD_SOURCE_STRICT && back.ifindex != port->ifindex)
		return FORWARD_PASS_REVERSE_PATH;
	return FORWARD_SENT;
}

/* Asks the kernel for the next hop, and redirects the packet there if it can be reached from here. */
static __always_inline enum forward_counter look_up(struct xdp_md *ctx, const struct frame *frame,
						    const struct forward_port *port, struct bpf_fib_lookup *fib,
						    struct hop *hop)
{
	const struct forward_output *output;
	const struct bpf_devmap_val *device;
	enum forward_counter verdict;

	fib->ifindex = port->ifindex;
	verdict = lookup_verdict(bpf_fib_lookup(ctx, fib, sizeof(*fib), 0));
	if (verdict != FORWARD_SENT)
		return verdict;
	/* Before anything changes: the kernel takes devices that go out of the map, whatever user space knows of them. */
	if (bpf_redirect_map(&devices_map, fib->ifindex, XDP_PASS) != XDP_REDIRECT)
		return FORWARD_PASS_OTHER_EGRESS;
	device = bpf_map_lookup_elem(&devices_map, &fib->ifindex);
	if (!device)
		return FORWARD_PASS_OTHER_EGRESS;
	/* Most frames leave untagged and in one piece, and need no more. */
	if (device->ifindex != fib->ifindex || !frame->whole) {
		output = bpf_map_lookup_elem(&outputs_map, &fib->ifindex);
		if (!output)
			return FORWARD_PASS_OTHER_EGRESS;
		if (!frame->whole && !(output->flags & FORWARD_FRAGMENTS))
			return FORWARD_PASS_MULTI_BUFFER;
		hop->tags[0] = output->tags[0];
		hop->tags[1] = output->tags[1];
	}
	__builtin_memcpy(hop->smac, fib->smac, ETH_ALEN);
	__builtin_memcpy(hop->dmac, fib->dmac, ETH_ALEN);
	return FORWARD_SENT;
}

/* Puts an Ethernet header with `tags` in front of a packet that has `had` tags; its network header stays whole. */
static __always_inline enum forward_counter put_link(struct xdp_md *ctx, __u32 had, const __u32 *tags,
						     const __u8 *smac, const __u8 *dmac, __be16 ethertype,
						     __u32 *network)
{
	__u32 count = tags[0] ? (tags[1] ? 2 : 1) : 0;
	struct ethhdr *ethernet;
	__be16 *next;

	if (had != count && bpf_xdp_adjust_head(ctx, (int)(sizeof(struct vlan_tag) * had) -
						    (int)(sizeof(struct vlan_tag) * count)))
		return FORWARD_PASS_NO_ROOM;
	ethernet = (void *)(long)ctx->data;
	if ((void *)(ethernet + 1) + FORWARD_TAGS * sizeof(struct vlan_tag) > (void *)(long)ctx->data_end)
		return FORWARD_IMPOSSIBLE;
	__builtin_memcpy(ethernet->h_source, smac, ETH_ALEN);
	__builtin_memcpy(ethernet->h_dest, dmac, ETH_ALEN);
	next = (void *)ethernet + 2 * ETH_ALEN;
	*network = sizeof(*ethernet);
	for (int i = 0; i < FORWARD_TAGS; i++) {
		if (!tags[i])
			break;
		*next++ = bpf_htons(tags[i] >> 16);
		*next++ = bpf_htons(tags[i]);
		*network += sizeof(struct vlan_tag);
	}
	*next = ethertype;
	return FORWARD_SENT;
}

/* As ip_decrease_ttl (include/net/ip.h). */
static __always_inline void decrease_ttl(struct iphdr *ip)
{
	__u32 check = ip->check;

	check += bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	ip->ttl--;
}

static __always_inline enum forward_counter rewrite_ipv4(struct xdp_md *ctx, const struct frame *frame,
							 const struct hop *hop)
{
	enum forward_counter verdict;
	struct iphdr *ip;
	__u32 network;

	verdict = put_link(ctx, frame->tags, hop->tags, hop->smac, hop->dmac, bpf_htons(ETH_P_IP), &network);
	if (verdict != FORWARD_SENT)
		return verdict;
	ip = (void *)(long)ctx->data + network;
	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return FORWARD_IMPOSSIBLE;
	decrease_ttl(ip);
	return FORWARD_SENT;
}

static __always_inline enum forward_counter rewrite_ipv6(struct xdp_md *ctx, const struct frame *frame,
							 const struct hop *hop)
{
	enum forward_counter verdict;
	struct ipv6hdr *ip;
	__u32 network;

	verdict = put_link(ctx, frame->tags, hop->tags, hop->smac, hop->dmac, bpf_htons(ETH_P_IPV6), &network);
	if (verdict != FORWARD_SENT)
		return verdict;
	ip = (void *)(long)ctx->data + network;
	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return FORWARD_IMPOSSIBLE;
	ip->hop_limit--;
	return FORWARD_SENT;
}

/*
 * Whether a device of a plan is still there. The kernel copies to none as well, and takes devices that go out of the map
 * before user space hears of it. The first keys are of one device each.
 */
static __always_inline bool has_device(void *receivers, const struct forward_feed *feed)
{
	for (__u32 number = 0; number < FORWARD_PORTS; number++) {
		__u32 key = number;

		if (number >= feed->devices)
			return false;
		if (bpf_map_lookup_elem(receivers, &key))
			return true;
	}
	return false;
}

/* Stamps a datagram of `length` bytes, IP header included, and has it copied to the receivers of `feed`. */
static __always_inline enum forward_counter replicate(struct xdp_md *ctx, const struct frame *frame,
						      const struct forward_feed *feed, __u32 length)
{
	static const __u32 no_tags[FORWARD_TAGS];
	struct forward_stamp stamp = { .plan = feed->plan };
	enum forward_counter verdict;
	struct forward_traffic *traffic;
	__u32 zero = 0, network, slot = feed->slot;
	__u64 *sequence = bpf_map_lookup_elem(&sequence_map, &zero);
	void *receivers = bpf_map_lookup_elem(&plans_map, &stamp.plan);

	if (!sequence || !receivers || !has_device(receivers, feed))
		return FORWARD_PASS_NO_RECEIVER;
	/* The kernel copies the linear part only. */
	if (!frame->whole)
		return FORWARD_PASS_MULTI_BUFFER;
	if (length > feed->mtu)
		return FORWARD_PASS_TOO_LARGE;
	if (bpf_redirect_map(receivers, 0, BPF_F_BROADCAST) != XDP_REDIRECT)
		return FORWARD_PASS_NO_RECEIVER;
	(*sequence)++;
	stamp.turn_low = *sequence;
	stamp.turn_high = *sequence >> 32;
	verdict = put_link(ctx, frame->tags, no_tags, (__u8 *)&stamp + ETH_ALEN, (__u8 *)&stamp,
			   bpf_htons(FORWARD_STAMP), &network);
	if (verdict != FORWARD_SENT)
		return verdict;
	traffic = bpf_map_lookup_elem(&feed_stats_map, &slot);
	if (traffic) {
		traffic->packets++;
		traffic->bytes += frame->length;
	}
	return FORWARD_REPLICATED;
}

/*
 * The feed that a datagram is of, if any: one with a whole UDP header, which is not a fragment and for which `fib` has
 * protocol and port already. A group's datagrams come in frames to a group, others in frames to us, and by interfaces of
 * the feed only.
 */
static __always_inline const struct forward_feed *feed_of(const struct forward_port *port, enum station station,
							  bool multicast, struct forward_listen *listen,
							  const struct bpf_fib_lookup *fib, __u32 transport,
							  __u32 end)
{
	const struct forward_feed *feed;
	__u32 slot = port->slot;

	if (!(port->flags & FORWARD_REPLICATE) || fib->l4_protocol != IPPROTO_UDP ||
	    transport + sizeof(struct udphdr) > end)
		return NULL;
	if (station != (multicast ? GROUP : US) || slot > FORWARD_PORTS)
		return NULL;
	listen->port = fib->dport;
	feed = bpf_map_lookup_elem(&feeds_map, listen);
	return feed && feed->ports[slot / 32] >> slot % 32 & 1 ? feed : NULL;
}

static __always_inline enum forward_counter forward_ipv4(struct xdp_md *ctx, const struct frame *frame,
							 const struct forward_port *port, enum station station)
{
	struct bpf_fib_lookup fib = { .family = AF_INET };
	struct forward_listen listen = { .family = 4 };
	const struct forward_feed *feed;
	enum forward_counter verdict;
	__u32 end, transport;
	bool multicast;
	struct hop hop = {};
	struct iphdr ip;
	const struct iphdr *linear = (void *)(long)ctx->data + frame->network;

	if ((void *)(linear + 1) > (void *)(long)ctx->data_end)
		return FORWARD_PASS_TRUNCATED;
	ip = *linear;
	if (ip.version != 4 || ip.ihl < 5)
		return FORWARD_PASS_MALFORMED;
	if (ip.ihl > 5)
		return FORWARD_PASS_IPV4_OPTIONS;
	if (bpf_ntohs(ip.tot_len) < sizeof(ip) || header_sum(&ip) != 0xffff)
		return FORWARD_PASS_MALFORMED;
	end = frame->network + bpf_ntohs(ip.tot_len);
	transport = frame->network + sizeof(ip);
	if (frame->length < end)
		return FORWARD_PASS_TRUNCATED;
	if (frame->length > end && frame->length > PADDED)
		return FORWARD_PASS_TRAILER;

	/* Of a fragment, the kernel hashes no ports. */
	if (ip.frag_off & bpf_htons(IPV4_FRAGMENT)) {
		fib.l4_protocol = ip.protocol;
	} else {
		if (!add_ports(ctx, &fib, ip.protocol, transport, end))
			return FORWARD_PASS_TRUNCATED;
		listen.address[2] = bpf_htonl(0xffff);
		listen.address[3] = ip.daddr;
		multicast = bpf_ntohl(ip.daddr) >> 28 == 0xe;
		feed = feed_of(port, station, multicast, &listen, &fib, transport, end);
		if (feed) {
			if (is_special_ipv4(ip.saddr))
				return FORWARD_PASS_SOURCE;
			/* Copies of a unicast feed have one hop less. */
			if (!multicast && ip.ttl <= LAST_HOP)
				return FORWARD_PASS_TTL;
			verdict = check_source(ctx, port, &ip);
			if (verdict != FORWARD_SENT)
				return verdict;
			return replicate(ctx, frame, feed, end - frame->network);
		}
	}
	if (station != US)
		return FORWARD_PASS_OTHER_MAC;

	if (is_special_ipv4(ip.daddr))
		return FORWARD_PASS_DESTINATION;
	if (is_special_ipv4(ip.saddr))
		return FORWARD_PASS_SOURCE;
	if (ip.ttl <= LAST_HOP)
		return FORWARD_PASS_TTL;
	if (!(ip.frag_off & bpf_htons(IPV4_OFFSET)) && is_icmp_error(ctx, ip.protocol, transport))
		return FORWARD_PASS_ICMP_ERROR;

	fib.tos = ip.tos;
	fib.tot_len = bpf_ntohs(ip.tot_len);
	fib.ipv4_src = ip.saddr;
	fib.ipv4_dst = ip.daddr;
	verdict = look_up(ctx, frame, port, &fib, &hop);
	if (verdict != FORWARD_SENT)
		return verdict;
	verdict = check_source(ctx, port, &ip);
	if (verdict != FORWARD_SENT)
		return verdict;
	return rewrite_ipv4(ctx, frame, &hop);
}

/* Fills in what the kernel hashes of an IPv6 packet. */
static __always_inline enum forward_counter classify_ipv6(struct xdp_md *ctx, struct bpf_fib_lookup *fib,
							  const struct forward_port *port, __u8 next,
							  __u32 transport, __u32 end)
{
	struct extension_header header;

	switch (next) {
	case NEXT_HOP_BY_HOP:
	case NEXT_ROUTING:
	case NEXT_DESTINATION:
	case NEXT_MOBILITY:
	case NEXT_HIP:
	case NEXT_SHIM6:
		return FORWARD_PASS_IPV6_EXTENSION;
	case NEXT_FRAGMENT:
		if (transport + 8 > end || !read_extension(ctx, transport, &header))
			return FORWARD_PASS_TRUNCATED;
		/* By layer 4 it is the fragmented protocol, without ports; by layer 3 it is the header. */
		fib->l4_protocol = port->flags & FORWARD_IPV6_PORTS ? header.next : NEXT_FRAGMENT;
		/* A fragmented ICMP error would be hashed by what is within. */
		return header.next == IPPROTO_ICMPV6 ? FORWARD_PASS_IPV6_EXTENSION : FORWARD_SENT;
	default:
		if (!add_ports(ctx, fib, next, transport, end))
			return FORWARD_PASS_TRUNCATED;
		return FORWARD_SENT;
	}
}

static __always_inline enum forward_counter forward_ipv6(struct xdp_md *ctx, const struct frame *frame,
							 const struct forward_port *port, enum station station)
{
	struct bpf_fib_lookup fib = { .family = AF_INET6 };
	struct forward_listen listen = { .family = 6 };
	const struct forward_feed *feed;
	enum forward_counter verdict;
	__u32 end, transport;
	bool multicast;
	struct hop hop = {};
	struct ipv6hdr ip;
	const struct ipv6hdr *linear = (void *)(long)ctx->data + frame->network;

	if ((void *)(linear + 1) > (void *)(long)ctx->data_end)
		return FORWARD_PASS_TRUNCATED;
	ip = *linear;
	if (ip.version != 6)
		return FORWARD_PASS_MALFORMED;
	transport = frame->network + sizeof(ip);
	end = transport + bpf_ntohs(ip.payload_len);
	if (frame->length < end)
		return FORWARD_PASS_TRUNCATED;
	if (frame->length > end && frame->length > PADDED)
		return FORWARD_PASS_TRAILER;
	verdict = classify_ipv6(ctx, &fib, port, ip.nexthdr, transport, end);
	if (verdict != FORWARD_SENT)
		return verdict;

	__builtin_memcpy(listen.address, &ip.daddr, sizeof(listen.address));
	multicast = ip.daddr.s6_addr[0] == 0xff;
	feed = feed_of(port, station, multicast, &listen, &fib, transport, end);
	if (feed) {
		/* What is sent to a group on the link may come from an address of the link. */
		if (is_special_ipv6(&ip.saddr) && !(multicast && is_link_local_ipv6(&ip.saddr)))
			return FORWARD_PASS_SOURCE;
		if (!multicast && ip.hop_limit <= LAST_HOP)
			return FORWARD_PASS_TTL;
		return replicate(ctx, frame, feed, end - frame->network);
	}
	if (station != US)
		return FORWARD_PASS_OTHER_MAC;

	if (is_special_ipv6(&ip.daddr))
		return FORWARD_PASS_DESTINATION;
	if (is_special_ipv6(&ip.saddr))
		return FORWARD_PASS_SOURCE;
	if (ip.hop_limit <= LAST_HOP)
		return FORWARD_PASS_TTL;
	if (is_icmp_error(ctx, ip.nexthdr, transport))
		return FORWARD_PASS_ICMP_ERROR;

	/* The kernel counts the whole packet against the MTU. One of 64 KiB has no 16-bit length. */
	if (end - frame->network > 0xffff)
		return FORWARD_PASS_TOO_LARGE;
	fib.tot_len = end - frame->network;
	fib.flowinfo = *(__be32 *)&ip & bpf_htonl(0x0fffffff);
	__builtin_memcpy(fib.ipv6_src, &ip.saddr, sizeof(fib.ipv6_src));
	__builtin_memcpy(fib.ipv6_dst, &ip.daddr, sizeof(fib.ipv6_dst));
	verdict = look_up(ctx, frame, port, &fib, &hop);
	if (verdict != FORWARD_SENT)
		return verdict;
	return rewrite_ipv6(ctx, frame, &hop);
}

static __always_inline bool same_mac(const __u8 *one, const __u8 *other)
{
	bool same = true;

	for (int i = 0; i < ETH_ALEN; i++)
		same &= one[i] == other[i];
	return same;
}

/* Where it is FORWARD_SENT or FORWARD_REPLICATED, the packet has been redirected. */
static __always_inline enum forward_counter forward_frame(struct xdp_md *ctx, struct frame *frame, __u32 *slot)
{
	struct forward_key key = { .ifindex = ctx->ingress_ifindex };
	const struct forward_port *port;
	enum station station = OTHERS;
	struct ethhdr ethernet;

	if (!read_link(ctx, frame, &ethernet, &key))
		return FORWARD_PASS_VLAN_DEPTH;
	port = bpf_map_lookup_elem(&ports_map, &key);
	if (!port)
		return FORWARD_PASS_OTHER_PORT;
	*slot = port->slot;
	if (same_mac(ethernet.h_dest, port->mac))
		station = US;
	else if (ethernet.h_dest[0] & 1)
		station = GROUP;
	/* Only feeds may be multicast. */
	if (station != US && !(port->flags & FORWARD_REPLICATE))
		return FORWARD_PASS_OTHER_MAC;
	if (frame->ethertype == bpf_htons(ETH_P_IP))
		return forward_ipv4(ctx, frame, port, station);
	if (frame->ethertype == bpf_htons(ETH_P_IPV6))
		return forward_ipv6(ctx, frame, port, station);
	return station == US ? FORWARD_PASS_NOT_IP : FORWARD_PASS_OTHER_MAC;
}

SEC("xdp.frags")
int expressway_fwd(struct xdp_md *ctx)
{
	struct frame frame = { .length = bpf_xdp_get_buff_len(ctx) };
	enum forward_counter counter;
	struct forward_stats *stats;
	__u32 slot = 0;

	frame.whole = linear_length(ctx) == frame.length;
	counter = forward_frame(ctx, &frame, &slot);
	stats = bpf_map_lookup_elem(&stats_map, &slot);
	if (stats && counter < FORWARD_COUNTERS) {
		stats->packets[counter]++;
		if (counter <= FORWARD_REPLICATED)
			stats->sent_bytes += frame.length;
	}
	if (counter <= FORWARD_REPLICATED)
		return XDP_REDIRECT;
	if (counter == FORWARD_IMPOSSIBLE)
		return XDP_ABORTED;
	if (counter >= FORWARD_FIRST_DROP)
		return drop_because(ctx, XDP_DROP_FORWARD, counter - FORWARD_FIRST_DROP);
	return XDP_PASS;
}

/* The receiver whose turn it is among those behind this device. */
static __always_inline const struct forward_target *next_target(struct xdp_md *ctx,
								const struct forward_stamp *stamp)
{
	struct forward_target_key key = { .plan = stamp->plan, .ifindex = ctx->egress_ifindex };
	__u64 number = (__u64)stamp->turn_high << 32 | stamp->turn_low;
	struct forward_turn *turn = bpf_map_lookup_elem(&turns_map, &key.ifindex);

	if (!turn)
		return NULL;
	if (turn->turn != number || turn->plan != stamp->plan) {
		turn->turn = number;
		turn->plan = stamp->plan;
		turn->next = 0;
	}
	key.number = turn->next++;
	return bpf_map_lookup_elem(&targets_map, &key);
}

/* A UDP checksum after words under it changed by `difference`; 0 means none, and is written as all ones. */
static __always_inline __sum16 changed(__sum16 check, __u32 difference)
{
	__u32 sum = (__u16)~check + (difference & 0xffff) + (difference >> 16);

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum ? (__u16)~sum : 0xffff;
}

static __always_inline bool address_ipv4(struct xdp_md *ctx, __u32 network, const struct forward_target *target)
{
	struct iphdr *ip = (void *)(long)ctx->data + network;
	struct udphdr *udp = (void *)(ip + 1);
	__be32 was[3], is[3];
	__s64 difference;

	if ((void *)(udp + 1) > (void *)(long)ctx->data_end)
		return false;
	was[0] = ip->saddr;
	was[1] = ip->daddr;
	was[2] = udp->dest;
	ip->saddr = is[0] = target->source[3];
	ip->daddr = is[1] = target->destination[3];
	udp->dest = target->port;
	is[2] = target->port;
	difference = bpf_csum_diff(was, sizeof(was), is, sizeof(is), 0);
	if (udp->check)
		udp->check = changed(udp->check, difference);
	ip->ttl = target->hop_limit ? target->hop_limit : ip->ttl - 1;
	ip->check = 0;
	ip->check = ~header_sum(ip);
	return true;
}

static __always_inline bool address_ipv6(struct xdp_md *ctx, __u32 network, const struct forward_target *target)
{
	struct ipv6hdr *ip = (void *)(long)ctx->data + network;
	struct udphdr *udp = (void *)(ip + 1);
	__be32 was[9], is[9];
	__s64 difference;

	if ((void *)(udp + 1) > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(was, &ip->saddr, 32);
	__builtin_memcpy(is, target->source, 16);
	__builtin_memcpy(is + 4, target->destination, 16);
	was[8] = udp->dest;
	is[8] = target->port;
	__builtin_memcpy(&ip->saddr, is, 32);
	udp->dest = target->port;
	difference = bpf_csum_diff(was, sizeof(was), is, sizeof(is), 0);
	udp->check = changed(udp->check, difference);
	ip->hop_limit = target->hop_limit ? target->hop_limit : ip->hop_limit - 1;
	return true;
}

/* Addresses a copy to its receiver, on the way out of the device. */
static __always_inline bool address_copy(struct xdp_md *ctx, const struct forward_stamp *stamp)
{
	const struct forward_target *target = next_target(ctx, stamp);
	struct forward_traffic *traffic;
	const __u8 *version;
	__be16 ethertype;
	__u32 network, slot;
	bool ipv4;

	if (!target)
		return false;
	version = (void *)(long)ctx->data + sizeof(struct ethhdr);
	if ((void *)(version + 1) > (void *)(long)ctx->data_end)
		return false;
	ipv4 = *version >> 4 == 4;
	ethertype = ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	if (put_link(ctx, 0, target->tags, target->smac, target->dmac, ethertype, &network) != FORWARD_SENT)
		return false;
	if (!(ipv4 ? address_ipv4(ctx, network, target) : address_ipv6(ctx, network, target)))
		return false;
	slot = target->slot;
	traffic = bpf_map_lookup_elem(&target_stats_map, &slot);
	if (traffic) {
		traffic->packets++;
		traffic->bytes += linear_length(ctx);
	}
	return true;
}

SEC("xdp.frags/devmap")
int forward_copy(struct xdp_md *ctx)
{
	const struct ethhdr *ethernet = (void *)(long)ctx->data;
	struct forward_egress *egress;
	struct forward_stamp stamp;
	__u32 device;

	if ((void *)(ethernet + 1) > (void *)(long)ctx->data_end || ethernet->h_proto != bpf_htons(FORWARD_STAMP))
		return XDP_PASS;
	__builtin_memcpy(&stamp, ethernet->h_dest, sizeof(stamp));
	if (address_copy(ctx, &stamp))
		return XDP_PASS;
	device = ctx->egress_ifindex;
	egress = bpf_map_lookup_elem(&egress_stats_map, &device);
	if (egress)
		egress->unclaimed++;
	return XDP_DROP;
}

/* As far as they are read here. */
struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

/* Set before load: the network namespace of the interfaces. */
const volatile __u32 namespace_inode = 0;

/* What a device made of a bulk of redirected frames, whoever redirected them. */
SEC("tp_btf/xdp_devmap_xmit")
int forward_sent(__u64 *arguments)
{
	const struct net_device *to = (void *)arguments[1];
	int sent = arguments[2], drops = arguments[3];
	struct forward_egress *egress;
	__u32 device = to->ifindex;

	if (to->nd_net.net->ns.inum != namespace_inode)
		return 0;
	egress = bpf_map_lookup_elem(&egress_stats_map, &device);
	if (!egress)
		return 0;
	if (sent > 0)
		egress->sent += sent;
	if (drops > 0)
		egress->refused += drops;
	return 0;
}

/* Set after load: what the kernel calls devices_map. */
__u32 devices_id = 0;

/*
 * What a device is not even given: it sends no redirected frames (any more), is down, or the frame is longer than it takes. Of a
 * feed's copies, the kernel leaves out such a device without a word (is_valid_dst in kernel/bpf/devmap.c). The
 * entry itself is a pointer to void, which the verifier of Linux 6.1 lets nobody read.
 */
SEC("tp_btf/xdp_redirect_err")
int forward_refused(__u64 *arguments)
{
	__u32 map = arguments[5], interface = arguments[6], device;
	const struct forward_output *output;
	struct forward_egress *egress;

	if (!devices_id || map != devices_id)
		return 0;
	output = bpf_map_lookup_elem(&outputs_map, &interface);
	if (!output)
		return 0;
	device = output->device;
	egress = bpf_map_lookup_elem(&egress_stats_map, &device);
	if (egress)
		egress->refused++;
	return 0;
}

/* The helpers used are for GPL-compatible programs; of the two licences, both are. */
char _license[] SEC("license") = "Dual BSD/GPL";
