/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Retry (RFC 9000, section 8.1.2) in the place of the servers: an Initial without a token is answered by a Retry packet, and
 * who comes back with its token has shown that it receives what is sent to its address, and is learned.
 *
 * A token has 34 bytes, and is good for one address, port and attempt, for a few seconds; servers with the key take it and
 * make such tokens too (crates/gateway/src/quic/token.rs):
 *
 *   0        1        2           6                      26        34
 *   +--------+--------+-----------+----------------------+---------+
 *   | 0xE2   | n      | Unix time | ID of n bytes, zeros | MAC     |
 *   +--------+--------+-----------+----------------------+---------+
 *
 * The ID is the one that the client made up first. The MAC is SipHash-2-4 over all before it, the client's port, the
 * connection ID of the Retry packet (20 bytes, zeros behind) and the client's address (16 bytes).
 *
 * The Retry Integrity Tag (RFC 9001, section 5.8) has a fixed key and nonce, so of AES-128-GCM only GHASH is left, by a
 * constant: `ghash` has the product of each half of a byte, in each place of a block.
 */
#ifndef EXPRESSWAY_GUARD_RETRY_H
#define EXPRESSWAY_GUARD_RETRY_H

#include "guard_answer.h"
#include "guard_bucket.h"
#include "guard_learn.h"
#include "guard_quic.h"

/* Set before load. */
const volatile bool has_retry = false;
const volatile bool has_learning = false;
/* Initials without a token that pass, in 1/1024 ns; a cost of 0: none. */
const volatile __u64 retry_cost = 0;
const volatile __u64 retry_burst = 0;
const volatile struct guard_ghash ghash[16 * 32] = {};
/* What the cipher makes of the nonce, in the order of the bytes. */
const volatile __u64 retry_mask[2] = {};

/* Of Initials without a token. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_bucket);
} retry_map SEC(".maps");

/* What the clock of Unix time is ahead of bpf_ktime_get_ns, in nanoseconds. User space keeps it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} clock_map SEC(".maps");

#define TOKEN_FORMAT 0xe2
#define TOKEN_LENGTH 34
#define TOKEN_ID 6
#define TOKEN_SIGNED 26
/* Seconds that a token is good for, and that clocks of servers may be ahead. */
#define TOKEN_LIFETIME 10
#define TOKEN_SKEW 5
/* Where in the text that is signed, behind the token, the rest stands. */
#define TEXT_PORT 26
#define TEXT_RETRY_ID 28
#define TEXT_ADDRESS 48
/* The shortest ID that a client makes up, and the length of those of Retry packets. */
#define QUIC_CID_LEAST 8
#define RETRY_ID 8
/* Where in the answer the Retry packet begins: behind UDP. Of its bytes, those beside the client's ID. */
#define RETRY_PACKET (ANSWER_TRANSPORT + sizeof(struct udphdr))
#define RETRY_TAG 16
#define RETRY_LENGTH (1 + 4 + 1 + 1 + RETRY_ID + TOKEN_LENGTH + RETRY_TAG)

/* Where the fields of an Initial packet stand. */
struct quic_initial {
	__u32 id_at, id_length;
	__u32 source_id_at, source_id_length;
	__u32 token_at, token_length;
};

static __always_inline __u32 unix_seconds(void)
{
	__u32 zero = 0;
	__u64 *ahead = bpf_map_lookup_elem(&clock_map, &zero);

	return ahead ? (bpf_ktime_get_ns() + *ahead) / 1000000000 : 0;
}

static __always_inline __u64 token_mac(const struct guard_scratch *scratch, __u32 key)
{
	struct sip_state state = sip_begin(quic_keys[key].token[0], quic_keys[key].token[1]);

	for (int i = 0; i < 8; i++)
		sip_take(&state, sip_word(scratch->text.words[i]));
	return sip_word(sip_end(&state, 0, sizeof(scratch->text)));
}

/* What is signed beside token and connection ID. */
static __always_inline void sign_client(struct guard_scratch *scratch, const struct guard_packet *packet)
{
	scratch->text.bytes[TEXT_PORT] = packet->source_port >> 8;
	scratch->text.bytes[TEXT_PORT + 1] = packet->source_port;
	__builtin_memcpy(scratch->text.bytes + TEXT_ADDRESS, packet->source, 16);
}

/* Whether the token, of which the text's first bytes are, is of ours and of this client now. */
static __always_inline bool is_valid_token(struct xdp_md *ctx, const struct guard_packet *packet, struct guard_scratch *scratch,
					   const struct quic_initial *initial)
{
	__u8 *text = scratch->text.bytes;
	__u32 length = initial->id_length;
	__u64 mac;
	__s32 age;

	__builtin_memcpy(&mac, text + TOKEN_SIGNED, sizeof(mac));
	__builtin_memset(text + TEXT_RETRY_ID, 0, QUIC_CID);
	if (!length || length > QUIC_CID ||
	    bpf_xdp_load_bytes(ctx, initial->id_at, text + TEXT_RETRY_ID, bounded(length, 32)))
		return false;
	sign_client(scratch, packet);
	age = unix_seconds() - ((__u32)text[2] << 24 | (__u32)text[3] << 16 | (__u32)text[4] << 8 | text[5]);
	if (age < -TOKEN_SKEW || age > TOKEN_LIFETIME)
		return false;
	for (__u32 i = 0; i < GUARD_QUIC_KEYS && i < quic_keys_used; i++)
		if (token_mac(scratch, i) == mac)
			return true;
	return false;
}

/* Multiplies the sum of GHASH and a block by the constant. */
static __always_inline void ghash_block(struct guard_scratch *scratch, __u64 first, __u64 second)
{
	__u64 next[2] = {};

	scratch->hash.words[0] ^= first;
	scratch->hash.words[1] ^= second;
	for (int i = 0; i < 16; i++) {
		__u32 byte = scratch->hash.bytes[i];
		__u32 high = below(i * 32 + (byte >> 4 & 15), 512), low = below(i * 32 + 16 + (byte & 15), 512);

		next[0] ^= ghash[high].words[0] ^ ghash[low].words[0];
		next[1] ^= ghash[high].words[1] ^ ghash[low].words[1];
	}
	scratch->hash.words[0] = next[0];
	scratch->hash.words[1] = next[1];
}

/* The tag of what stands in the answer at `start`, with zeros behind. Left in `hash`. */
static __always_inline void retry_tag(struct guard_scratch *scratch, __u32 start, __u32 length)
{
	__u64 words[2];

	scratch->hash.words[0] = scratch->hash.words[1] = 0;
	/* 90 bytes at most, and a block that says how many bits. */
	for (__u32 i = 0; i < 7; i++) {
		bool last = i * 16 >= length;

		if (last) {
			words[0] = bpf_cpu_to_be64((__u64)length * 8);
			words[1] = 0;
		} else {
			__builtin_memcpy(words, scratch->answer + start + i * 16, 16);
		}
		ghash_block(scratch, words[0], words[1]);
		if (last)
			break;
	}
	scratch->hash.words[0] ^= retry_mask[0];
	scratch->hash.words[1] ^= retry_mask[1];
}

/* Signs a token for the client in the text, with a new ID for the Retry packet. */
static __always_inline bool make_token(struct xdp_md *ctx, const struct guard_packet *packet, struct guard_scratch *scratch,
				       __u32 id_at, __u32 id_length, __u64 *mac)
{
	__u8 *text = scratch->text.bytes;
	__u32 now = unix_seconds(), random[2];

	__builtin_memset(text, 0, sizeof(scratch->text));
	text[0] = TOKEN_FORMAT;
	text[1] = id_length;
	text[2] = now >> 24;
	text[3] = now >> 16;
	text[4] = now >> 8;
	text[5] = now;
	if (id_length < QUIC_CID_LEAST || id_length > QUIC_CID ||
	    bpf_xdp_load_bytes(ctx, id_at, text + TOKEN_ID, bounded(id_length, 32)))
		return false;
	random[0] = bpf_get_prandom_u32();
	random[1] = bpf_get_prandom_u32();
	__builtin_memcpy(text + TEXT_RETRY_ID, random, RETRY_ID);
	/* Not to be taken for one that a load balancer can route. */
	text[TEXT_RETRY_ID] |= 0xe0;
	sign_client(scratch, packet);
	*mac = token_mac(scratch, 0);
	return true;
}

static __always_inline enum guard_reason send_retry(struct xdp_md *ctx, const struct guard_packet *packet,
						    const struct quic_initial *initial)
{
	__u32 id_length = initial->id_length, source_length = initial->source_id_length, start;
	struct guard_scratch *scratch = take_scratch();
	struct udphdr *udp;
	__u8 *retry, *rest;
	__u16 length;
	__u64 mac;

	if (!scratch || !is_answerable(packet) ||
	    !make_token(ctx, packet, scratch, initial->id_at, id_length, &mac))
		return GUARD_DROP_QUIC_CHALLENGE;
	if (id_length < QUIC_CID_LEAST || id_length > QUIC_CID || source_length > QUIC_CID)
		return GUARD_DROP_QUIC_CHALLENGE;
	id_length = below(id_length, 32);
	source_length = below(source_length, 32);
	/* The client's first ID is in front of what the tag is of, and not sent: the headers will be there. */
	retry = scratch->answer + RETRY_PACKET;
	/* Else clang subtracts from the pointer, which the verifier does not follow. */
	start = below(RETRY_PACKET - 1 - id_length, 128);
	scratch->answer[start] = id_length;
	if (bpf_xdp_load_bytes(ctx, initial->id_at, scratch->answer + start + 1, bounded(id_length, 32)))
		return GUARD_DROP_QUIC_CHALLENGE;
	/* A long header, fixed bit, type 3; version 1. */
	retry[0] = 0xf0;
	retry[4] = 1;
	retry[5] = source_length;
	if (source_length && bpf_xdp_load_bytes(ctx, initial->source_id_at, scratch->answer + RETRY_PACKET + 6,
						bounded(source_length, 32)))
		return GUARD_DROP_QUIC_CHALLENGE;
	rest = scratch->answer + RETRY_PACKET + 6 + source_length;
	rest[0] = RETRY_ID;
	__builtin_memcpy(rest + 1, scratch->text.bytes + TEXT_RETRY_ID, RETRY_ID);
	__builtin_memcpy(rest + 1 + RETRY_ID, scratch->text.bytes, TOKEN_SIGNED);
	__builtin_memcpy(rest + 1 + RETRY_ID + TOKEN_SIGNED, &mac, sizeof(mac));
	retry_tag(scratch, start, 1 + id_length + RETRY_LENGTH - RETRY_TAG + source_length);
	__builtin_memcpy(rest + 1 + RETRY_ID + TOKEN_LENGTH, scratch->hash.bytes, RETRY_TAG);

	length = sizeof(*udp) + RETRY_LENGTH + source_length;
	udp = (void *)(scratch->answer + ANSWER_TRANSPORT);
	udp->source = bpf_htons(packet->destination_port);
	udp->dest = bpf_htons(packet->source_port);
	udp->len = bpf_htons(length);
	udp->check = 0;
	udp->check = answer_checksum(scratch, packet, IPPROTO_UDP, length);
	if (!udp->check)
		udp->check = 0xffff;
	return send_back(ctx, scratch, packet, IPPROTO_UDP, length) ? GUARD_ANSWER_RETRY : GUARD_DROP_QUIC_CHALLENGE;
}

/* Whether there is room for one more Initial without a token. */
static __always_inline bool within_retry_rate(void)
{
	struct guard_bucket *bucket;
	__u32 zero = 0;

	if (!retry_cost)
		return false;
	bucket = bpf_map_lookup_elem(&retry_map, &zero);
	return bucket && take(&bucket->packets, bpf_ktime_get_ns() << GUARD_TIME_SHIFT, retry_cost, retry_burst);
}

/* Finds the fields of an Initial whose first ID is known to have up to 20 bytes. The datagram has 1200 bytes, so none of
 * them lies beyond. */
static __always_inline enum guard_reason parse_initial(struct xdp_md *ctx, __u32 payload, __u32 id_length,
						       struct quic_initial *initial)
{
	__u8 bytes[2];

	initial->id_at = payload + sizeof(struct quic_long);
	initial->id_length = id_length;
	initial->source_id_at = initial->id_at + id_length + 1;
	if (bpf_xdp_load_bytes(ctx, initial->source_id_at - 1, bytes, 1))
		return GUARD_DROP_QUIC_INITIAL;
	initial->source_id_length = bytes[0];
	if (initial->source_id_length > QUIC_CID)
		return GUARD_DROP_QUIC_VERSION;
	initial->token_at = initial->source_id_at + initial->source_id_length + 1;
	if (bpf_xdp_load_bytes(ctx, initial->token_at - 1, bytes, 2))
		return GUARD_DROP_QUIC_INITIAL;
	/* A number of one byte or two (RFC 9000, section 16). Longer forms have a token of nobody here. */
	if (bytes[0] < 0x40) {
		initial->token_length = bytes[0];
	} else if (bytes[0] < 0x80) {
		initial->token_length = (bytes[0] & 0x3f) << 8 | bytes[1];
		initial->token_at++;
	} else {
		initial->token_length = ~0u;
	}
	return 0;
}

/* Takes a valid token for what it is: a proof of the client's address. What it needs is in the scratch, which spares the stack. */
static __always_inline void take_token(const struct guard_packet *packet, struct guard_scratch *scratch)
{
	struct guard_address *source = (void *)scratch->hash.bytes;
	struct guard_quic_count *count;
	__u32 zero = 0;

	count = bpf_map_lookup_elem(&quic_stats_map, &zero);
	if (count)
		count->tokens++;
	if (!has_learning)
		return;
	__builtin_memcpy(source->address, packet->source, sizeof(source->address));
	learn(source, packet->ipv4, (void *)scratch->text.words);
}

/*
 * For an Initial packet with nothing wrong. 0: it passes on. One with the ID of a server belongs to a connection that is there, or
 * the server asks for a token itself. Tokens of other forms are as none (RFC 9000, section 8.1.3).
 */
static __always_inline enum guard_reason challenge(struct xdp_md *ctx, const struct guard_packet *packet)
{
	__u32 payload = packet->transport + sizeof(struct udphdr), id_length = packet->initial - 1;
	struct quic_initial initial;
	struct guard_scratch *scratch;
	enum guard_reason reason;
	__u32 zero = 0;

	if (has_issued_id(ctx, packet, payload + sizeof(struct quic_long), id_length))
		return 0;
	reason = parse_initial(ctx, payload, id_length, &initial);
	if (reason)
		return reason;
	if (initial.token_length == TOKEN_LENGTH) {
		scratch = bpf_map_lookup_elem(&scratch_map, &zero);
		if (!scratch || bpf_xdp_load_bytes(ctx, initial.token_at, scratch->text.bytes, TOKEN_LENGTH))
			return GUARD_DROP_QUIC_TOKEN;
		if (scratch->text.bytes[0] == TOKEN_FORMAT) {
			if (!is_valid_token(ctx, packet, scratch, &initial))
				return GUARD_DROP_QUIC_TOKEN;
			take_token(packet, scratch);
			return 0;
		}
	}
	if (within_retry_rate())
		return 0;
	return dry_run ? GUARD_ANSWER_RETRY : send_retry(ctx, packet, &initial);
}

#endif
