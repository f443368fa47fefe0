/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What guard.bpf.c and user space share: limits, rules, keys, counters. Include <linux/types.h> or equivalent first.
 */
#ifndef EXPRESSWAY_GUARD_SHARED_H
#define EXPRESSWAY_GUARD_SHARED_H

enum guard_limit {
	GUARD_WORDS = 16,
	/* Rules at most, a bit each. */
	GUARD_RULES = 1024,
	/* Index of packets without ports, beside the 65,536 ports; and of packets without TCP flags. */
	GUARD_NO_PORT = 65536,
	GUARD_NO_FLAGS = 256,
	/* IPv6 extension headers walked. */
	GUARD_EXTENSIONS = 6,
	/* Fraction of a nanosecond that costs are counted in, as bits. */
	GUARD_TIME_SHIFT = 10,
	/* Buckets of a rule for what finds no room for its own, a power of two. Limits by rule use the first. */
	GUARD_SHARED = 64,
	/* Of a sample that no rule decided. */
	GUARD_NO_RULE = 0xffff,
	/* Octets of a sampled packet at most: a perf record is below 64 KiB with its headers. */
	GUARD_SNAPLEN = 0xfc00,
	/* Different places of payloads that rules look at, and bytes that are looked at in one. */
	GUARD_PROBES = 8,
	GUARD_PATTERN = 16,
	/* Keys that are shared with servers of QUIC: the one in use, and the one before it. */
	GUARD_QUIC_KEYS = 2,
};

/* A set of rules. Bit n of `words[w]` is rule 64 w + n; bit w of `some` says that words[w] is not 0. */
struct guard_bits {
	__u64 some;
	__u64 words[GUARD_WORDS];
};

enum guard_action {
	GUARD_PASS = 0,
	GUARD_DROP,
	GUARD_LIMIT,
};

/* What a limit counts apart. */
enum guard_per {
	GUARD_PER_RULE = 0,
	GUARD_PER_SOURCE,
	GUARD_PER_DESTINATION,
	GUARD_PER_PORT,
};

/* What a rule does. Costs and bursts are times, in 1/1024 ns; a cost of 0 is no limit. */
struct guard_rule {
	__u64 packet_cost;
	__u64 packet_burst;
	__u64 byte_cost;
	__u64 byte_burst;
	__u64 ban;      /* ns; 0: none */
	__u32 action;   /* enum guard_action */
	__u16 per;      /* enum guard_per */
	__u8 prefix4;   /* bits of the address that count, for IPv4 and IPv6 */
	__u8 prefix6;
};

/* A bucket's key: an address is 16 bytes, IPv4 behind ::ffff:0:0/96. */
struct guard_key {
	__u32 rule;
	__u32 port;
	__u8 address[16];
};

/* When a bucket will be full again, in 1/1024 ns: the theoretical arrival time of the generic cell rate algorithm. */
struct guard_bucket {
	__u64 packets;
	__u64 bytes;
};

/* A place of payloads, and which bits of it count. */
struct guard_probe {
	__u32 offset; /* from the end of the TCP or UDP header, or of the IP header of other protocols */
	__u32 length; /* 1 to GUARD_PATTERN */
	__u64 mask[GUARD_PATTERN / 8]; /* in the order of the bytes */
};

/* What is found there. */
struct guard_payload_key {
	__u64 probe;
	__u64 bytes[GUARD_PATTERN / 8];
};

struct guard_prefix4 {
	__u32 length;
	__u8 address[4];
};

struct guard_prefix6 {
	__u32 length;
	__u8 address[16];
};

/* What is done about connection IDs of QUIC that no server issued. */
enum guard_unknown {
	GUARD_UNKNOWN_PASS = 0,
	GUARD_UNKNOWN_COUNT,
	GUARD_UNKNOWN_DROP,
};

/* A key that is shared with servers of QUIC, for IDs and for tokens, as words whose lowest byte is the first. */
struct guard_quic_key {
	__u64 id[2];
	__u64 token[2];
};

/* A product of GHASH, in the order of its bytes. */
struct guard_ghash {
	__u64 words[2];
};

/* What block4_map says of a /24, in two bits. */
enum guard_block {
	GUARD_BLOCK_NONE = 0,
	GUARD_BLOCK_ALL,
	/* Single addresses, which are in hosts4_map. */
	GUARD_BLOCK_HOSTS,
	/* Longer prefixes too, which are in block_long4_map together with the addresses. */
	GUARD_BLOCK_LONG,
};

/*
 * What became of a packet and why; index into stats_map. From GUARD_FIRST_ANSWER on it is answered in the place of a server,
 * from GUARD_FIRST_DROP on it is dropped: new ones of these come last, see xdp_drop_shared.h.
 */
enum guard_reason {
	GUARD_PASS_NOT_IP = 0,
	GUARD_PASS_ALLOWED,
	GUARD_PASS_FRAGMENT,
	GUARD_PASS_RULE,
	GUARD_PASS_LIMIT,
	GUARD_PASS_DEFAULT,
	GUARD_PASS_LEARNED,
	GUARD_ANSWER_RETRY,
	GUARD_ANSWER_SYN,
	GUARD_DROP_BLOCKED,
	GUARD_DROP_BANNED,
	GUARD_DROP_MALFORMED,
	GUARD_DROP_TCP_FLAGS,
	GUARD_DROP_ADDRESS,
	GUARD_DROP_FRAGMENT,
	GUARD_DROP_QUIC_INITIAL,
	GUARD_DROP_QUIC_VERSION,
	GUARD_DROP_QUIC_CONNECTION,
	GUARD_DROP_QUIC_TOKEN,
	GUARD_DROP_QUIC_CHALLENGE,
	GUARD_DROP_SYN,
	GUARD_DROP_TCP_ACK,
	GUARD_DROP_RULE,
	GUARD_DROP_LIMIT,
	GUARD_DROP_DEFAULT,
	GUARD_REASONS,
};
#define GUARD_FIRST_ANSWER GUARD_ANSWER_RETRY
#define GUARD_FIRST_DROP GUARD_DROP_BLOCKED

/* Per CPU, by reason, and by rule: all that matched, and of those what was dropped. */
struct guard_count {
	__u64 packets;
	__u64 bytes;
};

struct guard_rule_count {
	struct guard_count matched;
	struct guard_count dropped;
};

/* Per CPU, of QUIC. */
struct guard_quic_count {
	__u64 unknown_ids; /* of what passed on all the same */
	__u64 tokens;      /* Initials with a valid token */
};

/* Per CPU: what the tables could not hold. */
struct guard_full {
	__u64 buckets;
	__u64 bans;
};

/* A bucket of a source that was learned, and when it proved that its address is its own: the first time and the last. */
struct guard_learned {
	__u64 first;  /* ns, by bpf_ktime_get_ns */
	__u64 last;
	__u64 when;   /* as in a bucket */
};

/* Per CPU. */
struct guard_learning {
	__u64 proofs; /* that a source's address is its own */
	__u64 added;  /* sources */
	__u64 late;   /* sources that were new while there was an attack */
	__u64 full;   /* sources that found no room */
};

/* A dropped packet in a buffer; its octets follow. */
struct guard_sample {
	__u64 time;       /* monotonic, nanoseconds */
	__u32 ifindex;
	__u32 queue;
	__u32 length;     /* of the packet */
	__u32 octets;     /* that follow */
	__u32 rule;       /* that dropped it, or GUARD_NO_RULE */
	__u32 generation; /* of the rules that this is a number of */
	__u32 reason;     /* enum guard_reason */
	__u32 passed;     /* by a dry run */
};

/* Per CPU, by reason. */
struct guard_sampling {
	__u64 seen;    /* dropped packets */
	__u64 taken;   /* samples in buffers */
	__u64 limited; /* samples that the rate left out */
	__u64 lost;    /* samples that a buffer had no room for */
};

#endif
