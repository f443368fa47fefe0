// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A filter in front of everything: allow and block lists, bans, packets that cannot be, QUIC that cannot be, and rules.
 * What is not dropped passes to the next program or the stack, unchanged; some is answered.
 *
 * Rules are compiled into a set of rules for each value of each field: one lookup a field, and the AND of the sets holds
 * the rules that match, of which the first decides. Cost does not grow with the number of rules, but by a word of 64
 * where every field leaves one of them possible.
 *
 * All tables are written before the program is attached and do not change, except buckets, bans and counters. A change of
 * lists or rules is another load of this program, put in the place of the first at once.
 *
 * Linux 5.18 or newer (xdp.frags, bpf_xdp_load_bytes).
 */
#include <asm-generic/errno-base.h>

#include "guard_answer.h"
#include "guard_bucket.h"
#include "guard_learn.h"
#include "guard_packet.h"
#include "guard_payload.h"
#include "guard_quic.h"
#include "guard_retry.h"
#include "guard_sample.h"
#include "guard_syn.h"
#include "xdp_drop.h"

/* Set before load; what is not used is not in the loaded program. */
const volatile bool drop_malformed = true;
const volatile bool drop_fragments = false;
const volatile bool drop_default = false;
const volatile bool has_allow4 = false;
const volatile bool has_allow6 = false;
const volatile bool has_block4 = false;
const volatile bool has_block6 = false;
const volatile bool has_bans = false;
const volatile bool has_quic = false;
/* Of a source that was learned, in 1/1024 ns; a cost of 0 is no limit. */
const volatile __u64 learned_cost = 0;
const volatile __u64 learned_burst = 0;
const volatile __u32 rules = 0;
/* What hashes begin with, unknown to who sends packets. */
const volatile __u64 seed = 0;
/* Fields that any rule asks for. */
const volatile bool by_source = false;
const volatile bool by_destination = false;
const volatile bool by_source_port = false;
const volatile bool by_destination_port = false;
const volatile bool by_protocol = false;
const volatile bool by_length = false;
const volatile bool by_flags = false;
const volatile bool by_payload = false;

#define LPM(name, prefix, value_type)                             \
	struct {                                            \
		__uint(type, BPF_MAP_TYPE_LPM_TRIE);        \
		__uint(map_flags, BPF_F_NO_PREALLOC);       \
		__uint(max_entries, 1);                     \
		__type(key, struct prefix);                 \
		__type(value, value_type);                        \
	} name SEC(".maps")
#define TABLE(name, kind, key_type, value_type)                   \
	struct {                                            \
		__uint(type, kind);                         \
		__uint(max_entries, 1);                     \
		__type(key, key_type);                      \
		__type(value, value_type);                        \
	} name SEC(".maps")

LPM(allow4_map, guard_prefix4, __u8);
LPM(allow6_map, guard_prefix6, __u8);
/* Two bits a /24 (enum guard_block), 32 of them a word. */
TABLE(block4_map, BPF_MAP_TYPE_ARRAY, __u32, __u64);
TABLE(hosts4_map, BPF_MAP_TYPE_HASH, __be32, __u8);
LPM(block_long4_map, guard_prefix4, __u8);
LPM(block6_map, guard_prefix6, __u8);

LPM(source4_map, guard_prefix4, struct guard_bits);
LPM(source6_map, guard_prefix6, struct guard_bits);
LPM(destination4_map, guard_prefix4, struct guard_bits);
LPM(destination6_map, guard_prefix6, struct guard_bits);
/* Which of the sets a port or length has. */
TABLE(source_port_map, BPF_MAP_TYPE_ARRAY, __u32, __u32);
TABLE(destination_port_map, BPF_MAP_TYPE_ARRAY, __u32, __u32);
TABLE(length_map, BPF_MAP_TYPE_ARRAY, __u32, __u32);
TABLE(source_port_set_map, BPF_MAP_TYPE_ARRAY, __u32, struct guard_bits);
TABLE(destination_port_set_map, BPF_MAP_TYPE_ARRAY, __u32, struct guard_bits);
TABLE(length_set_map, BPF_MAP_TYPE_ARRAY, __u32, struct guard_bits);
TABLE(protocol_map, BPF_MAP_TYPE_ARRAY, __u32, struct guard_bits);
TABLE(flags_map, BPF_MAP_TYPE_ARRAY, __u32, struct guard_bits);
TABLE(rule_map, BPF_MAP_TYPE_ARRAY, __u32, struct guard_rule);

/*
 * Not an LRU: a flood from sources that do not exist would push out those that do. When it is full, what has no bucket
 * shares one of its rule's GUARD_SHARED, which are next to each other in shared_map. User space removes buckets that are
 * full again.
 */
TABLE(bucket_map, BPF_MAP_TYPE_HASH, struct guard_key, struct guard_bucket);
TABLE(shared_map, BPF_MAP_TYPE_ARRAY, __u32, struct guard_bucket);
/* Until when, by bpf_ktime_get_ns. */
TABLE(ban_map, BPF_MAP_TYPE_HASH, struct guard_address, __u64);

TABLE(stats_map, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct guard_count);
TABLE(rule_stats_map, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct guard_rule_count);
TABLE(full_map, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct guard_full);

/* Carries the shared types into BTF, and so into the skeleton. No instruction reads it. */
const struct guard_enums {
	enum guard_limit limit;
	enum guard_action action;
	enum guard_per per;
	enum guard_block block;
	enum guard_unknown unknown;
	enum guard_reason reason;
	struct guard_sample sample;
} guard_enums = {};

static __always_inline void key4(struct guard_prefix4 *key, const __u8 *address)
{
	key->length = 32;
	__builtin_memcpy(key->address, address + 12, 4);
}

static __always_inline void key6(struct guard_prefix6 *key, const __u8 *address)
{
	key->length = 128;
	__builtin_memcpy(key->address, address, 16);
}

static __always_inline bool is_allowed(const struct guard_packet *packet)
{
	struct guard_prefix4 four;
	struct guard_prefix6 six;

	if (packet->ipv4) {
		if (!has_allow4)
			return false;
		key4(&four, packet->source);
		return bpf_map_lookup_elem(&allow4_map, &four);
	}
	if (!has_allow6)
		return false;
	key6(&six, packet->source);
	return bpf_map_lookup_elem(&allow6_map, &six);
}

static __always_inline bool is_blocked4(const struct guard_packet *packet)
{
	struct guard_prefix4 four;
	__be32 address;
	__u32 network, index;
	__u64 *word;

	__builtin_memcpy(&address, packet->source + 12, 4);
	network = bpf_ntohl(address) >> 8;
	index = network / 32;
	word = bpf_map_lookup_elem(&block4_map, &index);
	if (!word)
		return false;
	switch (*word >> (network % 32 * 2) & 3) {
	case GUARD_BLOCK_ALL:
		return true;
	case GUARD_BLOCK_HOSTS:
		return bpf_map_lookup_elem(&hosts4_map, &address);
	case GUARD_BLOCK_LONG:
		key4(&four, packet->source);
		return bpf_map_lookup_elem(&block_long4_map, &four);
	default:
		return false;
	}
}

static __always_inline bool is_blocked(const struct guard_packet *packet)
{
	struct guard_prefix6 six;

	if (packet->ipv4)
		return has_block4 && is_blocked4(packet);
	if (!has_block6)
		return false;
	key6(&six, packet->source);
	return bpf_map_lookup_elem(&block6_map, &six);
}

/* Who is banned: an IPv4 address, or the /64 of an IPv6 address, in which a host has as many as it likes. */
static __always_inline struct guard_address banned_address(const struct guard_packet *packet)
{
	struct guard_address address = {};

	__builtin_memcpy(address.address, packet->source, 8);
	if (packet->ipv4)
		__builtin_memcpy(address.address + 8, packet->source + 8, 8);
	return address;
}

static __always_inline bool is_banned(const struct guard_packet *packet, __u64 now)
{
	struct guard_address address = banned_address(packet);
	__u64 *until;

	until = bpf_map_lookup_elem(&ban_map, &address);
	return until && *until > now;
}

/* The set of a port or length. */
#define CLASS_SET(index_map, set_map, value)                                         \
	({                                                                           \
		__u32 at_ = (value);                                                 \
		__u32 *class_ = bpf_map_lookup_elem(&index_map, &at_);               \
		class_ ? bpf_map_lookup_elem(&set_map, class_) : NULL;               \
	})

/*
 * The place of the lowest bit, by a de Bruijn sequence: its 64 windows of six bits differ. Without branches, each of which
 * would double what the verifier has to look at, and does in every turn of the loop below. Volatile: clang knows the values
 * else, and leaves out the bound that the verifier asks for.
 */
#define DE_BRUIJN 0x03f79d71b4cb0a89ull
static const volatile __u8 places[64] = {
	0,  1,	48, 2,	57, 49, 28, 3,	61, 58, 50, 42, 38, 29, 17, 4,	62, 55, 59, 36, 53, 51,
	43, 22, 45, 39, 33, 30, 24, 18, 12, 5,	63, 47, 56, 27, 60, 41, 37, 16, 54, 35, 52, 21,
	44, 32, 23, 11, 46, 26, 40, 15, 34, 20, 31, 10, 25, 14, 19, 9,	13, 8,	7,  6,
};

static __always_inline __u32 first_bit(__u64 word)
{
	return places[((word & -word) * DE_BRUIJN) >> 58 & 63];
}

/* The sets of a packet; NULL for a field that no rule asks for. */
struct guard_sets {
	const struct guard_bits *source, *destination, *source_port, *destination_port, *protocol, *length, *flags, *payload;
};

static __always_inline __u64 word_of(const struct guard_sets *sets, __u32 at)
{
	__u64 word = ~0ull;

	at &= GUARD_WORDS - 1;
	if (by_source && sets->source)
		word &= sets->source->words[at];
	if (by_destination && sets->destination)
		word &= sets->destination->words[at];
	if (by_source_port && sets->source_port)
		word &= sets->source_port->words[at];
	if (by_destination_port && sets->destination_port)
		word &= sets->destination_port->words[at];
	if (by_protocol && sets->protocol)
		word &= sets->protocol->words[at];
	if (by_length && sets->length)
		word &= sets->length->words[at];
	if (by_flags && sets->flags)
		word &= sets->flags->words[at];
	if (by_payload && sets->payload)
		word &= sets->payload->words[at];
	return word;
}

#define SET(used, field, found)                   \
	if (used) {                               \
		sets.field = found;               \
		if (!sets.field)                  \
			return -1;                \
		some &= sets.field->some;         \
	}

/* The first rule that matches, or -1. */
static __always_inline int match(struct xdp_md *ctx, const struct guard_packet *packet)
{
	struct guard_sets sets = {};
	struct guard_prefix4 four;
	struct guard_prefix6 six;
	__u32 index;
	__u64 some = rules >= GUARD_RULES ? 0xffff : (1ull << ((rules + 63) / 64)) - 1;

	if (packet->ipv4) {
		if (by_source) {
			key4(&four, packet->source);
			SET(true, source, bpf_map_lookup_elem(&source4_map, &four));
		}
		if (by_destination) {
			key4(&four, packet->destination);
			SET(true, destination, bpf_map_lookup_elem(&destination4_map, &four));
		}
	} else {
		if (by_source) {
			key6(&six, packet->source);
			SET(true, source, bpf_map_lookup_elem(&source6_map, &six));
		}
		if (by_destination) {
			key6(&six, packet->destination);
			SET(true, destination, bpf_map_lookup_elem(&destination6_map, &six));
		}
	}
	SET(by_source_port, source_port, CLASS_SET(source_port_map, source_port_set_map, packet->source_port));
	SET(by_destination_port, destination_port,
	    CLASS_SET(destination_port_map, destination_port_set_map, packet->destination_port));
	SET(by_length, length, CLASS_SET(length_map, length_set_map, packet->length & 0xffff));
	index = packet->protocol;
	SET(by_protocol, protocol, bpf_map_lookup_elem(&protocol_map, &index));
	index = packet->flags;
	SET(by_flags, flags, bpf_map_lookup_elem(&flags_map, &index));
	SET(by_payload, payload, payload_set(ctx, packet));

	for (int i = 0; i < GUARD_WORDS && some; i++) {
		__u32 at = first_bit(some);
		__u64 word = word_of(&sets, at);

		if (word)
			return at * 64 + first_bit(word);
		some &= some - 1;
	}
	return -1;
}

/* Which of its rule's shared buckets a key without one of its own has: none fills those of all others. */
static __always_inline __u32 shared_index(const struct guard_key *key)
{
	__u64 words[3], hash = seed;

	__builtin_memcpy(words, key, sizeof(words));
	for (int i = 0; i < 3; i++) {
		hash ^= words[i];
		hash *= 0x9e3779b97f4a7c15;
		hash ^= hash >> 32;
	}
	/* The last octets of an address are the highest here. */
	hash *= 0x9e3779b97f4a7c15;
	hash ^= hash >> 32;
	return key->rule * GUARD_SHARED + (hash & (GUARD_SHARED - 1));
}

static __always_inline bool within_limit(const struct guard_packet *packet, __u32 number,
					 const struct guard_rule *rule, __u64 nanoseconds)
{
	__u64 now = nanoseconds << GUARD_TIME_SHIFT;
	struct guard_bucket fresh = { .packets = now, .bytes = now };
	struct guard_key key = { .rule = number };
	struct guard_bucket *bucket;
	struct guard_full *full;
	__u32 zero = 0, shared;
	long error;

	if (rule->per == GUARD_PER_RULE) {
		shared = number * GUARD_SHARED;
		bucket = bpf_map_lookup_elem(&shared_map, &shared);
	} else {
		if (rule->per == GUARD_PER_PORT) {
			key.port = packet->destination_port;
		} else {
			if (rule->per == GUARD_PER_SOURCE)
				__builtin_memcpy(key.address, packet->source, 16);
			else
				__builtin_memcpy(key.address, packet->destination, 16);
			mask_address(key.address, packet->ipv4 ? 96 + rule->prefix4 : rule->prefix6);
		}
		bucket = bpf_map_lookup_elem(&bucket_map, &key);
		if (!bucket) {
			error = bpf_map_update_elem(&bucket_map, &key, &fresh, BPF_NOEXIST);
			/* Or another CPU was first. */
			if (!error || error == -EEXIST)
				bucket = bpf_map_lookup_elem(&bucket_map, &key);
		}
		if (!bucket) {
			full = bpf_map_lookup_elem(&full_map, &zero);
			if (full)
				full->buckets++;
			shared = shared_index(&key);
			bucket = bpf_map_lookup_elem(&shared_map, &shared);
		}
	}
	if (!bucket)
		return true;
	if (rule->packet_cost && !take(&bucket->packets, now, rule->packet_cost, rule->packet_burst))
		return false;
	return !rule->byte_cost ||
	       take(&bucket->bytes, now, rule->byte_cost * packet->length, rule->byte_burst);
}

static __always_inline void ban(const struct guard_packet *packet, __u64 until)
{
	struct guard_address address = banned_address(packet);
	struct guard_full *full;
	__u32 zero = 0;

	if (!bpf_map_update_elem(&ban_map, &address, &until, BPF_ANY))
		return;
	full = bpf_map_lookup_elem(&full_map, &zero);
	if (full)
		full->bans++;
}

/* Whether a packet beyond a limit is from a source that is known from before this attack, and within its own limit. */
static __always_inline bool is_preferred(const struct guard_packet *packet, __u64 now)
{
	struct guard_learned *learned;
	struct guard_address source;

	if (!is_attacked())
		return false;
	__builtin_memcpy(source.address, packet->source, 16);
	mask_address(source.address, packet->ipv4 ? 96 + learn_prefix4 : learn_prefix6);
	learned = bpf_map_lookup_elem(&learned_map, &source);
	/* Signed: of before this boot. */
	if (!learned || (__s64)(learned->last - learned->first) < (__s64)learn_after ||
	    (__s64)(now - learned->last) > (__s64)learn_expiry)
		return false;
	return !learned_cost || take(&learned->when, now << GUARD_TIME_SHIFT, learned_cost, learned_burst);
}

static __always_inline enum guard_reason apply(const struct guard_packet *packet, __u32 number, __u64 size)
{
	struct guard_rule *rule = bpf_map_lookup_elem(&rule_map, &number);
	struct guard_rule_count *count = bpf_map_lookup_elem(&rule_stats_map, &number);
	enum guard_reason reason = GUARD_PASS_RULE;
	__u64 now;

	if (!rule || !count)
		return GUARD_PASS_DEFAULT;
	count->matched.packets++;
	count->matched.bytes += size;
	if (rule->action == GUARD_DROP) {
		reason = GUARD_DROP_RULE;
	} else if (rule->action == GUARD_LIMIT) {
		now = bpf_ktime_get_ns();
		reason = GUARD_PASS_LIMIT;
		if (!within_limit(packet, number, rule, now)) {
			reason = GUARD_DROP_LIMIT;
			if (has_learning && is_preferred(packet, now))
				reason = GUARD_PASS_LEARNED;
			else if (rule->ban)
				ban(packet, now + rule->ban);
		}
	}
	if (reason >= GUARD_FIRST_DROP) {
		count->dropped.packets++;
		count->dropped.bytes += size;
	}
	return reason;
}

/*
 * Functions that the verifier looks at by themselves, and not once more for each state in which they are called: what they read
 * of a packet is checked where it is read. 0: nothing is wrong, and there is nothing to answer.
 */
__noinline int judge_quic(struct xdp_md *ctx, struct guard_packet *packet)
{
	return has_quic && packet ? check_quic(ctx, packet) : 0;
}

/* Called by judge, not by judge_quic: functions that call each other have 512 bytes of stack in all. */
__noinline int judge_initial(struct xdp_md *ctx, const struct guard_packet *packet)
{
	return has_retry && packet ? challenge(ctx, packet) : 0;
}

__noinline int judge_syn(struct xdp_md *ctx, const struct guard_packet *packet)
{
	return has_syn && packet ? check_syn(ctx, packet) : 0;
}

/* `number` becomes that of the rule that decided, if any. */
static __always_inline enum guard_reason judge(struct xdp_md *ctx, __u64 size, __u32 *number)
{
	struct guard_packet packet = {};
	enum guard_reason reason;
	int rule;

	if (!parse_packet(ctx, &packet))
		return drop_malformed && packet.wrong ? packet.wrong : GUARD_PASS_NOT_IP;
	if (is_allowed(&packet))
		return GUARD_PASS_ALLOWED;
	if (is_blocked(&packet))
		return GUARD_DROP_BLOCKED;
	if (has_bans && is_banned(&packet, bpf_ktime_get_ns()))
		return GUARD_DROP_BANNED;
	if (drop_malformed && packet.wrong)
		return packet.wrong;
	if (drop_fragments && packet.fragment)
		return GUARD_DROP_FRAGMENT;
	if (has_quic && !packet.wrong) {
		reason = judge_quic(ctx, &packet);
		if (!reason && has_retry && packet.initial)
			reason = judge_initial(ctx, &packet);
		if (reason)
			return reason;
	}
	if (has_syn && !packet.wrong) {
		reason = judge_syn(ctx, &packet);
		if (reason)
			return reason;
	}
	if (rules) {
		rule = match(ctx, &packet);
		if (rule >= 0) {
			*number = rule;
			return apply(&packet, rule, size);
		}
	}
	if (packet.fragment && packet.later)
		return GUARD_PASS_FRAGMENT;
	return drop_default ? GUARD_DROP_DEFAULT : GUARD_PASS_DEFAULT;
}

SEC("xdp.frags")
int expressway_grd(struct xdp_md *ctx)
{
	__u64 size = bpf_xdp_get_buff_len(ctx);
	__u32 rule = GUARD_NO_RULE, reason = judge(ctx, size, &rule);
	struct guard_count *count;

	count = bpf_map_lookup_elem(&stats_map, &reason);
	if (count) {
		count->packets++;
		count->bytes += size;
	}
	if (reason < GUARD_FIRST_DROP)
		return reason >= GUARD_FIRST_ANSWER && !dry_run ? XDP_TX : XDP_PASS;
	/* Before the sample: keeping these values live across it would exceed the BPF stack. */
	if (!dry_run)
		drop_because(ctx, XDP_DROP_GUARD, reason - GUARD_FIRST_DROP);
	if (has_samples)
		sample(ctx, reason, rule, size, dry_run);
	return dry_run ? XDP_PASS : XDP_DROP;
}

/* The helpers used are for GPL-compatible programs; of the two licences, both are. */
char _license[] SEC("license") = "Dual BSD/GPL";
