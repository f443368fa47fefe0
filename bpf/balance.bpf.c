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
#include "balance_quic.h"
#include "xdp_drop.h"

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
	__type(value, struct balance_newcomer);
} probation_map SEC(".maps");

/* Where the first fragments of packets went. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 13);
	__uint(map_flags, BPF_F_NO_COMMON_LRU);
	__type(key, struct balance_fragment);
	__type(value, struct balance_flow);
} fragments_map SEC(".maps");

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
	enum balance_move move;
} balance_enums = {};

/* How a packet found its node. */
struct choice {
	__u32 slot;
	__u32 now;
	__u32 moved; /* enum balance_move of an established flow */
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

/* The node of a flow, while it may have it; if not for what happened to the node, `moved` says what. */
static __always_inline struct balance_node *flow_node(const struct balance_flow *flow, const struct packet *packet,
						      const struct balance_service *service, __u32 now, __u32 *moved)
{
	struct balance_node *node = node_of(flow->node);

	/* Another CPU may have read the clock later. */
	if ((__s32)(now - flow->seen) > (__s32)service->idle)
		return NULL;
	if (packet->opens && flow->closed && (__s32)(now - flow->seen) >= BALANCE_CLOSED)
		return NULL;
	if (!node || node->generation != flow->generation || node->state == BALANCE_ABSENT) {
		*moved = BALANCE_MOVED_GONE;
		return NULL;
	}
	if (node->state == BALANCE_DOWN) {
		*moved = BALANCE_MOVED_DOWN;
		return NULL;
	}
	return node;
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
static __always_inline struct balance_node *new_node(const struct balance_service *service, __u64 hash, __u32 *slot)
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
	return node;
}

/* Counts an established flow of the node, until user space counts them all. What strangers begin is not counted. */
static __always_inline void add_load(const struct balance_service *service, struct balance_node *node)
{
	if (service->flags & BALANCE_LEAST)
		__sync_fetch_and_add(&node->load, node->step);
}

/* Counts a packet of a flow that is not established, which may make it so. */
static __always_inline void promote(const struct balance_flow_key *key, struct balance_flow *flow,
				    const struct packet *packet, const struct balance_service *service,
				    struct balance_node *node, struct choice *choice)
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
		add_load(service, node);
	}
}

/*
 * Whether the packet is of the connection that began with that SYN: by its sequence number, which a stranger has to guess.
 * It is asked where an established flow saw a FIN or RST, and then a SYN: either may be a stranger's, and the client's
 * next packet says which connection there is. Likewise where the flow's node is gone.
 */
static __always_inline bool is_of(const struct balance_newcomer *newcomer, const struct packet *packet)
{
	return packet->sequence - newcomer->sequence <= (packet->opens ? 0 : BALANCE_BEGINNING);
}

/* A node for a packet that finds no flow, or none whose node it may have. `flow` is the established one. */
static __always_inline struct balance_node *begin(const struct packet *packet, const struct balance_service *service,
						  __u64 hash, const struct balance_flow_key *key,
						  struct balance_flow *flow, struct choice *choice)
{
	struct balance_node *node = new_node(service, hash, &choice->slot);
	struct balance_newcomer fresh = {};

	if (!node || packet->error) {
		choice->moved = BALANCE_MOVED_NOT;
		return node;
	}
	fresh.flow.node = choice->slot;
	fresh.flow.generation = node->generation;
	fresh.flow.seen = choice->now;
	choice->begins = true;
	if (flow && (!packet->opens || service->flags & BALANCE_AFFINITY)) {
		/* Its node is gone: it stays established, with another. */
		fresh.flow.packets = flow->packets;
		*flow = fresh.flow;
		add_load(service, node);
		return node;
	}
	choice->moved = BALANCE_MOVED_NOT;
	fresh.flow.packets = packet->opens ? 0 : 1;
	fresh.sequence = packet->sequence;
	bpf_map_update_elem(&probation_map, key, &fresh, BPF_ANY);
	return node;
}

/* The node that the flow of the packet has or gets. */
static __always_inline struct balance_node *find_node(const struct packet *packet,
						      const struct balance_service *service, __u64 hash,
						      const struct balance_flow_key *key, struct choice *choice,
						      enum balance_counter *counter)
{
	struct balance_flow *flow = bpf_map_lookup_elem(&flows_map, key);
	struct balance_node *node = NULL, *other = NULL;
	struct balance_newcomer *newcomer = NULL;
	__u32 ignored = 0;

	if (flow)
		node = flow_node(flow, packet, service, choice->now, &choice->moved);
	if (!flow || ((!node || flow->closed) && packet->protocol == IPPROTO_TCP && !packet->error)) {
		newcomer = bpf_map_lookup_elem(&probation_map, key);
		if (newcomer && (!flow || is_of(newcomer, packet)))
			other = flow_node(&newcomer->flow, packet, service, choice->now, &ignored);
	}
	/* A SYN that the established flow still takes is its own. */
	if (newcomer && other && !(node && packet->opens)) {
		*counter = BALANCE_TX_PROBATION;
		choice->moved = BALANCE_MOVED_NOT;
		choice->slot = newcomer->flow.node;
		if (packet->error)
			return other;
		note_end(&newcomer->flow, packet, service, choice->now);
		promote(key, &newcomer->flow, packet, service, other, choice);
		return other;
	}
	if (flow && node) {
		*counter = BALANCE_TX_FLOW;
		choice->slot = flow->node;
		if (packet->error)
			return node;
		/* Not written for each packet: the line is shared. */
		if (flow->seen != choice->now)
			flow->seen = choice->now;
		note_end(flow, packet, service, choice->now);
		return node;
	}
	*counter = BALANCE_TX_NEW;
	return begin(packet, service, hash, key, flow, choice);
}

/*
 * The node that the packet's connection ID names (draft-ietf-quic-load-balancers, section 4.2). NULL if the ID is not
 * routable, or its node gets nothing: the flow decides then.
 */
static __always_inline struct balance_node *quic_node(void *data, void *data_end, const struct packet *packet,
						      const struct balance_service *service, __u32 *slot)
{
	struct balance_server_id server = {};
	struct balance_node *node;
	__u32 *found;

	if (!read_server_id(data, data_end, packet, service, &server))
		return NULL;
	found = bpf_map_lookup_elem(&server_ids_map, &server);
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
				  enum balance_counter outcome)
{
	struct balance_traffic *traffic = bpf_map_lookup_elem(map, &index);
	__u32 drop = outcome - BALANCE_FIRST_DROP;

	if (!traffic)
		return;
	if (outcome == BALANCE_TX_TOO_BIG) {
		traffic->answered++;
		return;
	}
	if (outcome >= BALANCE_FIRST_DROP) {
		if (drop < BALANCE_DROPS)
			traffic->dropped[drop]++;
		return;
	}
	if (choice->moved && choice->moved <= BALANCE_MOVES)
		traffic->moved[choice->moved - 1]++;
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
				count(&service_stats_map, service->id, &packet, &choice, counter);
			return counter;
		}
		if (packet.kind == PACKET_FIRST_FRAGMENT)
			remember_fragment(&packet, node, choice.slot);
	}
	outcome = forward(ctx, &packet, node, hash, counter, verdict);
	if (service)
		count(&service_stats_map, service->id, &packet, &choice, outcome);
	count(&node_stats_map, choice.slot, &packet, &choice, outcome);
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
		verdict = drop_because(ctx, XDP_DROP_BALANCE, counter - BALANCE_FIRST_DROP);
	stats = bpf_map_lookup_elem(&stats_map, &zero);
	if (stats && counter < BALANCE_COUNTERS)
		stats->packets[counter]++;
	return verdict;
}

/* The helpers used are for GPL-compatible programs; of the two licences, both are. */
char _license[] SEC("license") = "Dual BSD/GPL";
