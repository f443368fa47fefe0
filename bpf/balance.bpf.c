// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Sends the packets of configured services to their nodes, by layer 2 or in a tunnel; nodes answer clients directly.
 * What is for no service passes to the kernel's stack unchanged.
 *
 * Where a packet goes, in this order: the node that its QUIC connection ID names; the node of its flow; the service's
 * ring (Maglev), which user space replaces as a whole. A new flow is remembered in probation_map, and moves to flows_map
 * when more packets have shown that it is one. So a flood of single packets pushes only other strangers out: of the
 * established flows it reaches none, and they stay with their nodes when the ring changes. Both tables are LRU lists of
 * each CPU in one hash.
 *
 * A frame with a VLAN tag passes, as for none: attach to the VLAN's interface.
 *
 * Linux 5.18 or newer (xdp.frags).
 */
#include "balance_packet.h"
#include "balance_forward.h"

/* Where services are reached. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct balance_listener);
	__type(value, struct balance_service);
} listeners_map SEC(".maps");

struct balance_ring {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_RING);
	__type(key, __u32);
	__type(value, __u32); /* slot of nodes_map */
};

/* The ring of each service; none where no node is up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, BALANCE_SERVICES);
	__type(key, __u32);
	__array(values, struct balance_ring);
} rings_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_NODES);
	__type(key, __u32);
	__type(value, struct balance_node);
} nodes_map SEC(".maps");

/* Flows that are established. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 20);
	__uint(map_flags, BPF_F_NO_COMMON_LRU);
	__type(key, struct balance_flow_key);
	__type(value, struct balance_flow);
} flows_map SEC(".maps");

/* Flows that may become so. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 16);
	__uint(map_flags, BPF_F_NO_COMMON_LRU);
	__type(key, struct balance_flow_key);
	__type(value, struct balance_flow);
} probation_map SEC(".maps");

/* Where the first fragments of packets went. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 13);
	__uint(map_flags, BPF_F_NO_COMMON_LRU);
	__type(key, struct balance_fragment);
	__type(value, struct balance_flow);
} fragments_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BALANCE_SERVICES * BALANCE_QUIC_CONFIGS);
	__type(key, __u32);
	__type(value, struct balance_quic);
} quic_map SEC(".maps");

/* The node (slot) of each server ID. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BALANCE_NODES * BALANCE_QUIC_CONFIGS);
	__type(key, struct balance_server_id);
	__type(value, __u32);
} server_ids_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct balance_stats);
} stats_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_SERVICES);
	__type(key, __u32);
	__type(value, struct balance_traffic);
} service_stats_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_NODES);
	__type(key, __u32);
	__type(value, struct balance_traffic);
} node_stats_map SEC(".maps");

/* Mixed into the hash of flows. The same on all balancers of an address, so that they agree on new flows. */
const volatile __u64 hash_seed = 0;

/* Carries the shared enums into BTF, and so into the skeleton. No instruction reads it. */
const struct balance_enums {
	enum balance_limit limit;
	enum balance_flag flag;
	enum balance_state state;
	enum balance_method method;
	enum balance_counter counter;
} balance_enums = {};

/* How a packet found its node. */
struct choice {
	__u32 slot;
	__u32 now;
	bool begins;
	bool becomes_established;
	bool by_id;
};

/* Two rounds of multiply and fold for each half; the last mix is that of MurmurHash3. */
static __always_inline __u64 hash_flow(const struct balance_flow_key *key)
{
	const __u64 *word = (const void *)key->client;
	__u64 hash = hash_seed ^ 0x9e3779b97f4a7c15ull;

	hash = (hash ^ word[0]) * 0xff51afd7ed558ccdull;
	hash ^= hash >> 32;
	hash = (hash ^ word[1]) * 0xc4ceb9fe1a85ec53ull;
	hash ^= hash >> 29;
	/* Not the service: flows of one client to several services with the same nodes then agree. */
	hash = (hash ^ key->port) * 0xff51afd7ed558ccdull;
	hash ^= hash >> 33;
	hash *= 0xc4ceb9fe1a85ec53ull;
	return hash ^ hash >> 33;
}

static __always_inline struct balance_node *node_of(__u32 slot)
{
	return bpf_map_lookup_elem(&nodes_map, &slot);
}

/* The node of a flow, while it may have it. */
static __always_inline struct balance_node *flow_node(const struct balance_flow *flow, const struct packet *packet,
						      const struct balance_service *service, __u32 now)
{
	struct balance_node *node = node_of(flow->node);

	if (!node || node->generation != flow->generation)
		return NULL;
	/* Another CPU may have read the clock later. */
	if ((__s32)(now - flow->seen) > (__s32)service->idle)
		return NULL;
	if (packet->opens && flow->closed && (__s32)(now - flow->seen) >= BALANCE_CLOSED)
		return NULL;
	return node->state == BALANCE_UP || node->state == BALANCE_DRAINING ? node : NULL;
}

/*
 * Remembers whether the flow's client has closed it. Nobody has to be believed here: what goes on after a FIN or RST was
 * not closed by it. The last ACK of a connection comes soon. With affinity a flow is not one connection.
 */
static __always_inline void note_end(struct balance_flow *flow, const struct packet *packet,
				     const struct balance_service *service, __u32 now)
{
	if (packet->closes) {
		if (!(service->flags & BALANCE_AFFINITY))
			flow->closed = 0x8000 | (now & 0x7fff);
	} else if (flow->closed && (packet->opens || ((now - flow->closed) & 0x7fff) >= BALANCE_CLOSED)) {
		flow->closed = 0;
	}
}

static __always_inline struct balance_node *ring_node(void *ring, __u32 hash, __u32 *slot)
{
	__u32 index = (__u64)hash * BALANCE_RING >> 32;
	__u32 *entry = bpf_map_lookup_elem(ring, &index);
	struct balance_node *node;

	if (!entry)
		return NULL;
	*slot = *entry;
	node = node_of(*entry);
	return node && node->state == BALANCE_UP ? node : NULL;
}

/* A node for a flow that has none. */
static __always_inline struct balance_node *new_node(const struct balance_service *service,
						     const struct packet *packet, __u64 hash, __u32 *slot)
{
	void *ring = bpf_map_lookup_elem(&rings_map, &service->id);
	struct balance_node *node, *other;
	__u32 second;

	if (!ring)
		return NULL;
	node = ring_node(ring, hash, slot);
	if (!(service->flags & BALANCE_LEAST))
		return node;
	other = ring_node(ring, hash >> 32, &second);
	if (other && (!node || other->load < node->load)) {
		node = other;
		*slot = second;
	}
	if (node && !packet->error)
		__sync_fetch_and_add(&node->load, node->step);
	return node;
}

/* Counts a packet of a flow that is not established, which may make it so. */
static __always_inline void promote(const struct balance_flow_key *key, struct balance_flow *flow,
				    const struct packet *packet, struct choice *choice)
{
	__u16 enough = packet->protocol == IPPROTO_TCP ? BALANCE_TCP_ESTABLISHED : BALANCE_UDP_ESTABLISHED;
	struct balance_flow established;

	flow->seen = choice->now;
	if (packet->opens || packet->closes)
		return;
	if (++flow->packets < enough)
		return;
	established = *flow;
	if (bpf_map_update_elem(&flows_map, key, &established, BPF_ANY) == 0) {
		bpf_map_delete_elem(&probation_map, key);
		choice->becomes_established = true;
	}
}

/* The node that the flow of the packet has or gets. */
static __always_inline struct balance_node *find_node(const struct packet *packet,
						      const struct balance_service *service, __u64 hash,
						      const struct balance_flow_key *key, struct choice *choice,
						      enum balance_counter *counter)
{
	struct balance_flow *flow = bpf_map_lookup_elem(&flows_map, key);
	struct balance_flow fresh = {};
	struct balance_node *node;

	if (flow) {
		node = flow_node(flow, packet, service, choice->now);
		*counter = BALANCE_TX_FLOW;
		choice->slot = flow->node;
		if (node) {
			if (packet->error)
				return node;
			/* Not written for each packet: the line is shared. */
			if (flow->seen != choice->now)
				flow->seen = choice->now;
			note_end(flow, packet, service, choice->now);
			return node;
		}
	} else {
		flow = bpf_map_lookup_elem(&probation_map, key);
		node = flow ? flow_node(flow, packet, service, choice->now) : NULL;
		if (node) {
			*counter = BALANCE_TX_PROBATION;
			choice->slot = flow->node;
			if (packet->error)
				return node;
			note_end(flow, packet, service, choice->now);
			promote(key, flow, packet, choice);
			return node;
		}
		flow = NULL;
	}

	*counter = BALANCE_TX_NEW;
	node = new_node(service, packet, hash, &choice->slot);
	if (!node || packet->error)
		return node;
	fresh.node = choice->slot;
	fresh.generation = node->generation;
	fresh.seen = choice->now;
	choice->begins = true;
	if (flow && !packet->opens) {
		/* Its node is gone: it stays established, with another. */
		fresh.packets = flow->packets;
		*flow = fresh;
		return node;
	}
	if (flow)
		bpf_map_delete_elem(&flows_map, key);
	fresh.packets = packet->opens ? 0 : 1;
	bpf_map_update_elem(&probation_map, key, &fresh, BPF_ANY);
	return node;
}

/* The longest part of a QUIC header that is read: first byte, version, length and the first 17 bytes of the ID. */
struct quic_short {
	__u8 first;
	__u8 rotation;
	__u8 id[16];
};

struct quic_long {
	__u8 first;
	__u8 version[4];
	__u8 length;
	__u8 rotation;
	__u8 id[16];
};

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the bytes of a server ID are cut by shifts of a little-endian word"
#endif

/* The first `length` of 8 bytes. */
static __always_inline __u64 first_bytes(__u64 bytes, __u32 length)
{
	return length >= 8 ? bytes : bytes & ((1ull << (length * 8)) - 1);
}

/*
 * The node that the packet's connection ID names (draft-ietf-quic-load-balancers, section 4). NULL if the ID is not
 * routable: the flow decides then.
 */
static __always_inline struct balance_node *quic_node(void *data, void *data_end, const struct packet *packet,
						      const struct balance_service *service, __u32 *slot)
{
	struct quic_short *brief;
	struct balance_server_id key = {};
	struct balance_quic *config;
	struct balance_node *node;
	__u64 id[2];
	__u32 index, *found;
	__u8 rotation;

	if (packet->payload > 128)
		return NULL;
	brief = data + packet->payload + sizeof(struct udphdr);
	if ((void *)(brief + 1) > data_end)
		return NULL;
	if (brief->first & 0x80) {
		struct quic_long *header = (void *)brief;

		if ((void *)(header + 1) > data_end)
			return NULL;
		rotation = header->rotation;
		index = header->length;
		__builtin_memcpy(id, header->id, sizeof(id));
	} else {
		rotation = brief->rotation;
		/* Its length is known to its issuer only, who made it long enough. */
		index = 20;
		__builtin_memcpy(id, brief->id, sizeof(id));
	}
	key.config = rotation >> 5;
	if (key.config >= BALANCE_QUIC_UNROUTABLE)
		return NULL;
	key.length = index;
	index = service->id * BALANCE_QUIC_CONFIGS + key.config;
	config = bpf_map_lookup_elem(&quic_map, &index);
	/* Section 3: a nonce has 4 bytes at least. */
	if (!config || !config->valid || key.length < 1 + config->server_id_length + 4)
		return NULL;
	key.length = config->server_id_length;
	id[0] = first_bytes(id[0], key.length);
	id[1] = key.length > 8 ? first_bytes(id[1], key.length - 8) : 0;
	__builtin_memcpy(key.id, id, sizeof(key.id));
	key.service = service->id;
	found = bpf_map_lookup_elem(&server_ids_map, &key);
	if (!found)
		return NULL;
	*slot = *found;
	node = node_of(*found);
	return node && (node->state == BALANCE_UP || node->state == BALANCE_DRAINING) ? node : NULL;
}

static __always_inline void fragment_key(const struct packet *packet, struct balance_fragment *key)
{
	__builtin_memcpy(key->source, packet->source, sizeof(key->source));
	__builtin_memcpy(key->destination, packet->destination, sizeof(key->destination));
	key->id = packet->id;
	key->protocol = packet->protocol;
}

/* The node that got the first fragment of the packet. */
static __always_inline struct balance_node *fragment_node(const struct packet *packet, __u32 *slot)
{
	struct balance_fragment key = {};
	struct balance_flow *first;
	struct balance_node *node;

	fragment_key(packet, &key);
	first = bpf_map_lookup_elem(&fragments_map, &key);
	if (!first)
		return NULL;
	*slot = first->node;
	node = node_of(first->node);
	if (!node || node->generation != first->generation || node->state == BALANCE_ABSENT)
		return NULL;
	return node;
}

static __always_inline void remember_fragment(const struct packet *packet, const struct balance_node *node, __u32 slot)
{
	struct balance_flow first = { .node = slot, .generation = node->generation };
	struct balance_fragment key = {};

	fragment_key(packet, &key);
	bpf_map_update_elem(&fragments_map, &key, &first, BPF_ANY);
}

static __always_inline void count(void *map, __u32 index, const struct packet *packet, const struct choice *choice,
				  bool dropped)
{
	struct balance_traffic *traffic = bpf_map_lookup_elem(map, &index);

	if (!traffic)
		return;
	if (dropped) {
		traffic->dropped++;
		return;
	}
	traffic->packets++;
	traffic->bytes += packet->length;
	traffic->flows += choice->begins;
	traffic->established += choice->becomes_established;
	traffic->by_id += choice->by_id;
}

/* Finds the service and the node of a packet whose ports are known. */
static __always_inline enum balance_counter route(struct xdp_md *ctx, struct packet *packet, struct choice *choice,
						  struct balance_service **service, struct balance_node **node,
						  __u64 *hash)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	struct balance_listener listener = {};
	struct balance_flow_key key = {};
	enum balance_counter counter;

	__builtin_memcpy(listener.address, packet->destination, sizeof(listener.address));
	listener.port = packet->destination_port;
	listener.family = packet->family;
	listener.protocol = packet->protocol;
	*service = bpf_map_lookup_elem(&listeners_map, &listener);
	if (!*service)
		return BALANCE_PASS_NO_SERVICE;
	if (packet->hop_limit <= 1)
		return BALANCE_PASS_HOP_LIMIT;

	__builtin_memcpy(key.client, packet->source, sizeof(key.client));
	if (!((*service)->flags & BALANCE_AFFINITY))
		key.port = packet->source_port;
	key.service = (*service)->id;
	*hash = hash_flow(&key);
	choice->now = bpf_ktime_get_coarse_ns() / 1000000000;
	if (((*service)->flags & BALANCE_QUIC_LB) && !packet->error) {
		*node = quic_node(data, data_end, packet, *service, &choice->slot);
		if (*node) {
			choice->by_id = true;
			return BALANCE_TX_QUIC_LB;
		}
	}
	*node = find_node(packet, *service, *hash, &key, choice, &counter);
	if (!*node)
		return BALANCE_DROP_NO_NODE;
	return packet->error ? BALANCE_TX_ICMP : counter;
}

static __always_inline enum balance_counter balance(struct xdp_md *ctx, int *verdict)
{
	struct balance_service *service = NULL;
	struct balance_node *node = NULL;
	struct packet packet = {};
	struct choice choice = {};
	enum balance_counter counter = parse(ctx, &packet), outcome;
	__u64 hash = 0;

	if (counter >= BALANCE_FIRST_PASS)
		return counter;
	if (counter == BALANCE_TX_FRAGMENT) {
		node = fragment_node(&packet, &choice.slot);
		if (!node)
			return BALANCE_PASS_FRAGMENT;
		if (packet.hop_limit <= 1)
			return BALANCE_PASS_HOP_LIMIT;
		hash = packet.id;
	} else {
		counter = route(ctx, &packet, &choice, &service, &node, &hash);
		if (!node) {
			if (service && counter >= BALANCE_FIRST_DROP)
				count(&service_stats_map, service->id, &packet, &choice, true);
			return counter;
		}
		if (packet.kind == PACKET_FIRST_FRAGMENT)
			remember_fragment(&packet, node, choice.slot);
	}
	outcome = forward(ctx, &packet, node, hash, counter, verdict);
	if (service)
		count(&service_stats_map, service->id, &packet, &choice, outcome != counter);
	count(&node_stats_map, choice.slot, &packet, &choice, outcome != counter);
	return outcome;
}

/* The name that shows in `ip link` and `bpftool`: 15 characters at most. */
SEC("xdp.frags")
int expressway_lb(struct xdp_md *ctx)
{
	int verdict = XDP_PASS;
	enum balance_counter counter = balance(ctx, &verdict);
	struct balance_stats *stats;
	__u32 zero = 0;

	if (counter >= BALANCE_FIRST_DROP)
		verdict = XDP_DROP;
	stats = bpf_map_lookup_elem(&stats_map, &zero);
	if (stats && counter < BALANCE_COUNTERS)
		stats->packets[counter]++;
	return verdict;
}

/* The helpers used are for GPL-compatible programs; of the two licences, both are. */
char _license[] SEC("license") = "Dual BSD/GPL";
