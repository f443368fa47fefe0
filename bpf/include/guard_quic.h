/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * QUIC to a server's port: what no client sends, and, with a key that is shared with servers, connection IDs that none of
 * them issued.
 *
 * The form of IDs is that of crates/gateway/src/quic/cid.rs: 16 bytes, of which the last two are the first two of SipHash-2-4
 * over the rest. So of made-up IDs one in 65,536 passes.
 */
#ifndef EXPRESSWAY_GUARD_QUIC_H
#define EXPRESSWAY_GUARD_QUIC_H

#include "guard_packet.h"
#include "siphash.h"

/* Set before load. */
const volatile __u32 quic_keys_used = 0;
const volatile struct guard_quic_key quic_keys[GUARD_QUIC_KEYS] = {};
/* enum guard_unknown */
const volatile __u32 quic_unknown = GUARD_UNKNOWN_PASS;

/* A bit a port. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} quic_port_map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard_quic_count);
} quic_stats_map SEC(".maps");

/* Versions that are known to have that form of header, and their Initial packets (RFC 9000, 9369, the drafts' numbers). */
#define QUIC_1 0x00000001
#define QUIC_2 0x6b3343cf
#define QUIC_DRAFTS 0xff0000
#define QUIC_CID 20
#define QUIC_INITIAL_LENGTH 1200
#define QUIC_LONG 0x80

/* Kinds of long headers, by the number that version 1 gives them; version 2 has each one further. */
enum quic_kind {
	QUIC_INITIAL = 0,
	QUIC_ZERO_RTT,
	QUIC_HANDSHAKE,
	QUIC_RETRY,
};

struct quic_long {
	__u8 first;
	__u8 version[4];
	__u8 cid_length;
};
HEADER_READER(quic, struct quic_long)

/* Bytes of the connection IDs that servers issue, and those in front of the check. */
#define ISSUED_LENGTH 16
#define ISSUED_CHECKED 14

struct issued_id {
	__u8 bytes[ISSUED_LENGTH];
};
HEADER_READER(issued_id, struct issued_id)

static __always_inline bool is_issued(const struct issued_id *id)
{
	struct sip_state state;
	__u64 words[2], rest;

	__builtin_memcpy(words, id, sizeof(words));
	words[0] = sip_word(words[0]);
	words[1] = sip_word(words[1]);
	rest = words[1] & ((1ull << 48) - 1);
	for (__u32 i = 0; i < GUARD_QUIC_KEYS && i < quic_keys_used; i++) {
		state = sip_begin(quic_keys[i].id[0], quic_keys[i].id[1]);
		sip_take(&state, words[0]);
		if ((sip_end(&state, rest, ISSUED_CHECKED) & 0xffff) == words[1] >> 48)
			return true;
	}
	return false;
}

/* Whether a server issued the ID at `offset`; `length` is that of the ID, or of what is there for one. */
static __always_inline bool has_issued_id(struct xdp_md *ctx, const struct guard_packet *packet, __u32 offset, __u32 length)
{
	struct issued_id id;

	ONE_REGISTER(offset);
	return length == ISSUED_LENGTH && offset <= FARTHEST_HEADER && offset + ISSUED_LENGTH <= packet->end &&
	       read_issued_id(ctx, offset, &id) && is_issued(&id);
}

static __always_inline enum guard_reason unknown_id(void)
{
	struct guard_quic_count *count;
	__u32 zero = 0;

	if (quic_unknown == GUARD_UNKNOWN_DROP)
		return GUARD_DROP_QUIC_CONNECTION;
	count = bpf_map_lookup_elem(&quic_stats_map, &zero);
	if (count)
		count->unknown_ids++;
	return 0;
}

static __always_inline bool is_quic_port(const struct guard_packet *packet)
{
	__u32 index = packet->destination_port / 64;
	__u64 *ports = bpf_map_lookup_elem(&quic_port_map, &index);

	return ports && *ports >> (packet->destination_port % 64) & 1;
}

/* A long header of a version that is known, with an ID of `quic->cid_length` bytes behind `quic`. */
static __always_inline enum guard_reason check_long(struct xdp_md *ctx, struct guard_packet *packet, __u32 payload,
						    const struct quic_long *quic, __u32 version)
{
	__u8 kind = quic->first >> 4 & 3;

	if (version == QUIC_2)
		kind = (kind + 3) & 3;
	if (quic->cid_length > QUIC_CID)
		return GUARD_DROP_QUIC_VERSION;
	if (kind == QUIC_INITIAL) {
		if (packet->end - payload < QUIC_INITIAL_LENGTH)
			return GUARD_DROP_QUIC_INITIAL;
		if (version == QUIC_1)
			packet->initial = 1 + quic->cid_length;
		return 0;
	}
	/* 0-RTT has the ID that the client made up; what comes later has one of the server. */
	if (!quic_unknown || kind == QUIC_ZERO_RTT)
		return 0;
	return has_issued_id(ctx, packet, payload + sizeof(*quic), quic->cid_length) ? 0 : unknown_id();
}

/* To a server's port. 0 if nothing is wrong. */
static __always_inline enum guard_reason check_quic(struct xdp_md *ctx, struct guard_packet *packet)
{
	__u32 payload = packet->transport + sizeof(struct udphdr), length, version;
	struct quic_long quic;
	__u8 byte;

	if (packet->protocol != IPPROTO_UDP || packet->fragment || payload > FARTHEST_HEADER || !is_quic_port(packet))
		return 0;
	length = packet->end - payload;
	if (length == 0)
		return GUARD_DROP_QUIC_INITIAL;
	/* What cannot hold a long header is let through only as a short one, by its first byte. */
	if (length < sizeof(quic)) {
		if (bpf_xdp_load_bytes(ctx, payload, &byte, 1))
			return 0;
		if (byte & QUIC_LONG)
			return GUARD_DROP_QUIC_INITIAL;
		return quic_unknown ? unknown_id() : 0;
	}
	if (!read_quic(ctx, payload, &quic))
		return 0;
	if (!(quic.first & QUIC_LONG)) {
		if (!quic_unknown || has_issued_id(ctx, packet, payload + 1, ISSUED_LENGTH))
			return 0;
		return unknown_id();
	}
	version = (__u32)quic.version[0] << 24 | quic.version[1] << 16 | quic.version[2] << 8 | quic.version[3];
	/* Version negotiation is for clients. */
	if (version == 0)
		return GUARD_DROP_QUIC_VERSION;
	if (version == QUIC_1 || version == QUIC_2 || version >> 8 == QUIC_DRAFTS)
		return check_long(ctx, packet, payload, &quic, version);
	/* Others are answered by version negotiation, if they are long enough (RFC 9000, section 5.2.2). */
	return length < QUIC_INITIAL_LENGTH ? GUARD_DROP_QUIC_VERSION : 0;
}

#endif
