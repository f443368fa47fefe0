// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Gives the UDP datagrams of configured (address, port) pairs to the AF_XDP socket of the receive queue.
 * Everything else passes to the kernel's stack unchanged. A packet is dropped only when it is certain to
 * be for a configured pair and its lengths are inconsistent.
 *
 * Skipped headers: up to two in-band VLAN tags, and IPv6 hop-by-hop, destination and routing headers that the
 * kernel would only step over: options of the "skip if unknown" class only (RFC 8200 section 4.2), no segments
 * left. Jumbograms, home addresses and segments left are for the kernel. A tag that the device removed from
 * the frame (rx-vlan offload) is not seen here.
 *
 * Not checked: IPv4 header and UDP checksums and the source address. User space reads those bytes anyway
 * and checks them.
 *
 * A truncated packet is ours if its destination address and port lie within both the frame and the length
 * in the IP header. With fewer bytes the port is unknown, or is Ethernet padding; such a packet passes to the
 * kernel, which counts it as an error.
 *
 * Linux 5.18 or newer (xdp.frags, bpf_xdp_load_bytes).
 */
#include "packet.h"
#include "redirect_shared.h"
#include "xdp_drop.h"

/* The destinations of the service: a set, whose values are unused. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct redirect_pair);
	__type(value, __u8);
} pairs_map SEC(".maps");

/* The AF_XDP sockets by receive queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} xsks_map SEC(".maps");

/* One entry, per CPU: one lookup and one plain increment a packet. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct redirect_stats);
} stats_map SEC(".maps");

/*
 * Set before load. With check_mac, frames to any other MAC than local_mac pass: frames that a switch
 * floods or a promiscuous interface sees belong to their own station, even if we share its IP address (anycast,
 * direct server return).
 */
const volatile bool check_mac = false;
const volatile __u8 local_mac[ETH_ALEN] = {};

/* Carries the shared enums into BTF, and so into the skeleton. No instruction reads it. */
const struct redirect_enums {
	enum redirect_limit limit;
	enum redirect_family family;
	enum redirect_counter counter;
	enum redirect_valid valid;
} redirect_enums = {};

/*
 * Whether every option of an options header may be skipped if unknown: `offset` is that of the first option,
 * `length` that of all options. A global function (not static), so that the verifier checks its loop once and
 * not for each path to it.
 */
__attribute__((noinline)) int options_skippable(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	for (int i = 0; i < REDIRECT_IPV6_OPTIONS; i++) {
		__u8 option[2] = {};
		__u32 size = 1;

		if (length == 0)
			return 1;
		if (bpf_xdp_load_bytes(ctx, offset, option, 1))
			return 0;
		if (option[0] & OPTION_ACTION)
			return 0;
		if (option[0] != OPTION_PAD1) {
			if (bpf_xdp_load_bytes(ctx, offset + 1, option + 1, 1))
				return 0;
			size = 2 + option[1];
		}
		/* Also true of a type byte without a length byte. */
		if (size > length)
			return 0;
		offset += size;
		length -= size;
	}
	return length == 0;
}

/* Behind the IP header: the UDP header is at `udp`, the IP packet ends at `end` (offsets in the frame). */
static __always_inline enum redirect_counter classify_udp(struct xdp_md *ctx, struct redirect_pair *pair,
							  __u32 udp, __u32 end)
{
	struct udphdr header;
	struct udp_ports ports;
	bool whole = read_udp(ctx, udp, &header);
	__u32 length;

	if (whole)
		pair->port = header.dest;
	else if (read_ports(ctx, udp, &ports))
		pair->port = ports.destination;
	else
		return REDIRECT_PASS_TRUNCATED;
	if (end < udp + sizeof(ports))
		return REDIRECT_PASS_TRUNCATED;

	if (!bpf_map_lookup_elem(&pairs_map, pair))
		return REDIRECT_PASS_OTHER_PAIR;

	if (!whole || end < udp + sizeof(header))
		return REDIRECT_DROP_UDP_HEADER;
	if (!frame_holds(ctx, end))
		return REDIRECT_DROP_IP_LENGTH;
	length = bpf_ntohs(header.len);
	if (length < sizeof(header) || length > end - udp)
		return REDIRECT_DROP_UDP_LENGTH;
	return REDIRECT_TAKEN;
}

static __always_inline enum redirect_counter classify_ipv4(struct xdp_md *ctx, __u32 offset)
{
	struct redirect_pair pair = { .family = REDIRECT_IPV4 };
	struct iphdr ip;

	if (!read_ipv4(ctx, offset, &ip))
		return REDIRECT_PASS_TRUNCATED;
	if (ip.version != 4 || ip.ihl < 5)
		return REDIRECT_PASS_MALFORMED;
	if (ip.protocol != IPPROTO_UDP)
		return REDIRECT_PASS_NOT_UDP;
	if (ip.frag_off & bpf_htons(IPV4_FRAGMENT))
		return REDIRECT_PASS_FRAGMENT;
	if (ip.ihl > 5)
		return REDIRECT_PASS_IPV4_OPTIONS;

	pair.address[2] = bpf_htonl(0xffff);
	pair.address[3] = ip.daddr;
	return classify_udp(ctx, &pair, offset + sizeof(ip), offset + bpf_ntohs(ip.tot_len));
}

/* The verdict on a next header that is neither UDP nor skipped. */
static __always_inline enum redirect_counter unwalked(__u8 next)
{
	switch (next) {
	case NEXT_FRAGMENT:
		return REDIRECT_PASS_FRAGMENT;
	case NEXT_HOP_BY_HOP:
	case NEXT_ROUTING:
	case NEXT_DESTINATION:
	case NEXT_AUTHENTICATION:
	case NEXT_MOBILITY:
	case NEXT_HIP:
	case NEXT_SHIM6:
		return REDIRECT_PASS_IPV6_EXTENSION;
	default:
		return REDIRECT_PASS_NOT_UDP;
	}
}

/*
 * Walks the extension headers from `*offset` up to the UDP header, where it leaves `*offset`.
 * REDIRECT_TAKEN means that there is one.
 */
static __always_inline enum redirect_counter walk_extensions(struct xdp_md *ctx, __u8 next, __u32 *offset,
							     __u32 end)
{
	for (int i = 0; i < REDIRECT_IPV6_HEADERS && next != IPPROTO_UDP; i++) {
		struct extension_header header;
		__u32 size;

		/* Hop-by-hop options come first or not at all (RFC 8200 section 4.1). */
		if (next != NEXT_ROUTING && next != NEXT_DESTINATION && (next != NEXT_HOP_BY_HOP || i > 0))
			break;
		if (!read_extension(ctx, *offset, &header))
			return REDIRECT_PASS_TRUNCATED;
		size = 8 * (header.length + 1);
		if (*offset + size > end || !frame_holds(ctx, *offset + size))
			return REDIRECT_PASS_TRUNCATED;
		if (next == NEXT_ROUTING) {
			if (header.segments_left)
				return REDIRECT_PASS_IPV6_EXTENSION;
		} else if (!options_skippable(ctx, *offset + 2, size - 2)) {
			return REDIRECT_PASS_IPV6_EXTENSION;
		}
		*offset += size;
		next = header.next;
	}
	return next == IPPROTO_UDP ? REDIRECT_TAKEN : unwalked(next);
}

static __always_inline enum redirect_counter classify_ipv6(struct xdp_md *ctx, __u32 offset)
{
	struct redirect_pair pair = { .family = REDIRECT_IPV6 };
	enum redirect_counter walked;
	struct ipv6hdr ip;
	__u32 end;

	if (!read_ipv6(ctx, offset, &ip))
		return REDIRECT_PASS_TRUNCATED;
	if (ip.version != 6)
		return REDIRECT_PASS_MALFORMED;

	offset += sizeof(ip);
	end = offset + bpf_ntohs(ip.payload_len);
	if (ip.nexthdr != IPPROTO_UDP) {
		walked = walk_extensions(ctx, ip.nexthdr, &offset, end);
		if (walked != REDIRECT_TAKEN)
			return walked;
	}

	__builtin_memcpy(pair.address, &ip.daddr, sizeof(pair.address));
	return classify_udp(ctx, &pair, offset, end);
}

static __always_inline bool is_local_mac(const struct ethhdr *ethernet)
{
	bool same = true;

	for (int i = 0; i < ETH_ALEN; i++)
		same &= ethernet->h_dest[i] == local_mac[i];
	return same;
}

static __always_inline bool is_vlan(__be16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

static __always_inline enum redirect_counter classify(struct xdp_md *ctx)
{
	__u32 offset = sizeof(struct ethhdr);
	struct ethhdr ethernet;
	__be16 ethertype;

	if (!read_ethernet(ctx, 0, &ethernet))
		return REDIRECT_PASS_TRUNCATED;
	if (check_mac && !is_local_mac(&ethernet))
		return REDIRECT_PASS_OTHER_MAC;

	ethertype = ethernet.h_proto;
#pragma unroll
	for (int i = 0; i < REDIRECT_VLAN_TAGS; i++) {
		struct vlan_tag tag;

		if (!is_vlan(ethertype))
			break;
		if (!read_vlan(ctx, offset, &tag))
			return REDIRECT_PASS_TRUNCATED;
		ethertype = tag.ethertype;
		offset += sizeof(tag);
	}

	if (ethertype == bpf_htons(ETH_P_IP))
		return classify_ipv4(ctx, offset);
	if (ethertype == bpf_htons(ETH_P_IPV6))
		return classify_ipv6(ctx, offset);
	return is_vlan(ethertype) ? REDIRECT_PASS_VLAN_DEPTH : REDIRECT_PASS_NOT_IP;
}

#if defined(REDIRECT_HINTS) || defined(REDIRECT_STAMPS) || defined(REDIRECT_SWITCH)
/* Puts what is known of the packet in front of it. Without room there, the packet goes undescribed. */
static __always_inline void put(struct xdp_md *ctx, struct redirect_metadata *found)
{
	struct redirect_metadata *metadata;

	found->version = REDIRECT_METADATA_VERSION;
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*metadata)))
		return;
	metadata = (void *)(long)ctx->data_meta;
	if ((void *)(metadata + 1) > (void *)(long)ctx->data)
		return;
	*metadata = *found;
}
#endif

#if defined(REDIRECT_HINTS) || defined(REDIRECT_STAMPS)
/* Drawn by user space at load; says that metadata is this program's and not what lay there before. */
const volatile __u32 metadata_cookie = 0;
#elif defined(REDIRECT_SWITCH)
/* The one of the map .bss. */
volatile struct redirect_switch redirect_switch = {};
#endif

#if defined(REDIRECT_HINTS)
/* `enum xdp_rss_hash_type` of include/net/xdp.h, as far as its size matters. */
enum xdp_rss_hash_type { XDP_RSS_TYPE_UNKNOWN = 0, XDP_RSS_TYPE_WIDEST = 0x7fffffff };

/*
 * net/core/xdp.c. Each answers 0, or -EOPNOTSUPP where the driver has it not, or -ENODATA for this packet.
 */
extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, __u64 *timestamp) __ksym __weak;
extern int bpf_xdp_metadata_rx_hash(const struct xdp_md *ctx, __u32 *hash,
				    enum xdp_rss_hash_type *rss_type) __ksym __weak;
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, __be16 *vlan_proto,
					__u16 *vlan_tci) __ksym __weak;

/* What the device reports about the packet. */
static __always_inline void ask_device(struct xdp_md *ctx, struct redirect_metadata *found)
{
	enum xdp_rss_hash_type hash_type = XDP_RSS_TYPE_UNKNOWN;

	if (bpf_ksym_exists(bpf_xdp_metadata_rx_timestamp) &&
	    bpf_xdp_metadata_rx_timestamp(ctx, &found->timestamp) == 0 && found->timestamp)
		found->valid |= REDIRECT_DEVICE_TIME;
	if (bpf_ksym_exists(bpf_xdp_metadata_rx_hash) &&
	    bpf_xdp_metadata_rx_hash(ctx, &found->hash, &hash_type) == 0) {
		found->hash_type = hash_type;
		found->valid |= REDIRECT_HASH;
	}
	if (bpf_ksym_exists(bpf_xdp_metadata_rx_vlan_tag) &&
	    bpf_xdp_metadata_rx_vlan_tag(ctx, &found->vlan_protocol, &found->vlan_tag) == 0)
		found->valid |= REDIRECT_VLAN;
}

static __always_inline void describe(struct xdp_md *ctx)
{
	struct redirect_metadata found = { .cookie = metadata_cookie };

	ask_device(ctx, &found);
	if (!(found.valid & REDIRECT_DEVICE_TIME)) {
		found.timestamp = bpf_ktime_get_tai_ns();
		found.valid |= REDIRECT_PROGRAM_TIME;
	}
	put(ctx, &found);
}
#elif defined(REDIRECT_STAMPS)
static __always_inline void describe(struct xdp_md *ctx)
{
	struct redirect_metadata found = { .valid = REDIRECT_PROGRAM_TIME, .cookie = metadata_cookie };

	found.timestamp = bpf_ktime_get_tai_ns();
	put(ctx, &found);
}
#elif defined(REDIRECT_SWITCH)
static __always_inline void describe(struct xdp_md *ctx)
{
	__u64 ahead = redirect_switch.tai_ahead;

	if (ahead) {
		struct redirect_metadata found = {
			/* bpf_ktime_get_tai_ns is of Linux 6.1, and this program loads on older ones. */
			.timestamp = bpf_ktime_get_ns() + ahead,
			.valid = REDIRECT_PROGRAM_TIME,
			.cookie = redirect_switch.cookie,
		};

		put(ctx, &found);
	}
}
#else
static __always_inline void describe(struct xdp_md *ctx __attribute__((unused)))
{
}
#endif

/* The name that shows in `ip link` and `bpftool`: 15 characters at most. */
SEC("xdp.frags")
int expressway_udp(struct xdp_md *ctx)
{
	enum redirect_counter counter = classify(ctx);
	struct redirect_stats *stats;
	int verdict = XDP_PASS;
	__u32 zero = 0;

	if (counter == REDIRECT_TAKEN) {
		describe(ctx);
		/* An empty slot, or a queue beyond the map, answers with the flags: XDP_PASS. */
		verdict = bpf_redirect_map(&xsks_map, ctx->rx_queue_index, XDP_PASS);
		if (verdict != XDP_REDIRECT)
			counter = REDIRECT_PASS_NO_SOCKET;
	} else if (counter >= REDIRECT_FIRST_DROP) {
		verdict = drop_because(ctx, XDP_DROP_REDIRECT, counter - REDIRECT_FIRST_DROP);
	}

	stats = bpf_map_lookup_elem(&stats_map, &zero);
	if (stats && counter < REDIRECT_COUNTERS)
		stats->packets[counter]++;
	return verdict;
}

/* The helpers used are for GPL-compatible programs; of the two licences, both are. */
char _license[] SEC("license") = "Dual BSD/GPL";
