/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How balance.bpf.c reads the server ID out of a QUIC connection ID (draft-ietf-quic-load-balancers): in clear, or behind
 * AES-128, in one pass where server ID and nonce are a block, else in the draft's four passes.
 *
 * AES is computed by tables that user space writes before the program is loaded, and round keys that it expands: a round is
 * four look-ups for each column (Daemen and Rijmen, "The Design of Rijndael", section 4.2). The inverse cipher has the same
 * rounds with other tables, if columns are taken in the order 0, 3, 2, 1. Keys decide what is looked up, so who measures
 * this machine's caches from within might learn them: they hide which node has a connection, nothing else.
 *
 * bpf_crypto (Linux 6.10) is not used: kernels before it need the tables all the same, and its AES is a generic one too, since it
 * takes linear ciphers alone (crypto/bpf_crypto_skcipher.c), which crypto/ecb.c makes of the cipher for single blocks. How long
 * it takes behind its call and two dynptrs has not been measured.
 */
#ifndef EXPRESSWAY_BALANCE_QUIC_H
#define EXPRESSWAY_BALANCE_QUIC_H

#include "balance_packet.h"

/* How connection IDs are read, by service * BALANCE_QUIC_CONFIGS + codepoint. Replaced as a whole, so no array. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, BALANCE_SERVICES * BALANCE_QUIC_CONFIGS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct balance_quic);
} quic_map SEC(".maps");

/* What SubBytes and MixColumns make of a byte in a column's first row: of the cipher, then of its inverse. */
const volatile __u32 aes_columns[2 * 256] = {};
/* The S-box and its inverse. */
const volatile __u8 aes_bytes[2 * 256] = {};

#define AES_ENCRYPT 0
#define AES_DECRYPT 256
#define AES_ROUNDS 10

/* What is read of a QUIC header: as much as the longest server ID and nonce take behind the first byte of an ID. */
struct quic_short {
	__u8 first;
	__u8 rotation;
	__u8 id[20];
};

struct quic_long {
	__u8 first;
	__u8 version[4];
	__u8 length;
	__u8 rotation;
	__u8 id[20];
};

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the bytes of a server ID are cut by shifts of a little-endian word"
#endif

static __always_inline __u32 turned(__u32 word, int bits)
{
	return word >> bits | word << (32 - bits);
}

static __always_inline __u32 aes_column(int way, __u32 a, __u32 b, __u32 c, __u32 d)
{
	return aes_columns[way + (a >> 24)] ^ turned(aes_columns[way + (b >> 16 & 0xff)], 8) ^
	       turned(aes_columns[way + (c >> 8 & 0xff)], 16) ^ turned(aes_columns[way + (d & 0xff)], 24);
}

static __always_inline __u32 aes_last(int way, __u32 a, __u32 b, __u32 c, __u32 d)
{
	return (__u32)aes_bytes[way + (a >> 24)] << 24 | (__u32)aes_bytes[way + (b >> 16 & 0xff)] << 16 |
	       (__u32)aes_bytes[way + (c >> 8 & 0xff)] << 8 | aes_bytes[way + (d & 0xff)];
}

/* One block, as big-endian columns. */
static __always_inline void aes(const __u32 *keys, int way, __u32 block[4])
{
	__u32 a = block[0] ^ keys[0], b = block[1] ^ keys[1], c = block[2] ^ keys[2], d = block[3] ^ keys[3];
	int round;

#pragma clang loop unroll(disable)
	for (round = 1; round < AES_ROUNDS; round++) {
		const __u32 *key = keys + 4 * round;
		__u32 e = aes_column(way, a, b, c, d) ^ key[0];
		__u32 f = aes_column(way, b, c, d, a) ^ key[1];
		__u32 g = aes_column(way, c, d, a, b) ^ key[2];
		__u32 h = aes_column(way, d, a, b, c) ^ key[3];

		a = e;
		b = f;
		c = g;
		d = h;
	}
	keys += 4 * AES_ROUNDS;
	block[0] = aes_last(way, a, b, c, d) ^ keys[0];
	block[1] = aes_last(way, b, c, d, a) ^ keys[1];
	block[2] = aes_last(way, c, d, a, b) ^ keys[2];
	block[3] = aes_last(way, d, a, b, c) ^ keys[3];
}

/* Server ID and nonce, as they came and in clear, zero behind their end; and what is computed with. */
struct quic_work {
	__u64 id[3];
	__u32 block[4];
	__u32 from[4];
	__u32 to[4];
};

/* Not on the stack, which has no room for it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct quic_work);
} quic_work_map SEC(".maps");

/* Section 5.5.1 of the draft: server ID and nonce are one block. */
static __always_inline void decrypt_block(const struct balance_quic *config, struct quic_work *work)
{
	__u64 high = bpf_be64_to_cpu(work->id[0]), low = bpf_be64_to_cpu(work->id[1]);

	work->block[0] = high >> 32;
	work->block[1] = low;
	work->block[2] = low >> 32;
	work->block[3] = high;
	aes(config->round_keys, AES_DECRYPT, work->block);
	work->id[0] = bpf_cpu_to_be64((__u64)work->block[0] << 32 | work->block[3]);
	work->id[1] = bpf_cpu_to_be64((__u64)work->block[2] << 32 | work->block[1]);
}

/* The halves of an ID. They are ten bytes at most; of 19 bytes in all, the middle one belongs to both. */
static __always_inline void split_halves(const struct balance_quic *config, struct quic_work *work)
{
	__u64 high = bpf_be64_to_cpu(work->id[0]), middle = bpf_be64_to_cpu(work->id[1]);
	__u64 low = bpf_be64_to_cpu(work->id[2]), right_high, right_low;
	__u32 offset = config->length >> 1, shift = 8 * (offset & 7);

	if (offset < 8) {
		right_high = high << shift | middle >> 1 >> (63 - shift);
		right_low = middle << shift | low >> 1 >> (63 - shift);
	} else {
		right_high = middle << shift | low >> 1 >> (63 - shift);
		right_low = low << shift;
	}
	work->to[0] = high >> 32 & config->masks[0][0];
	work->to[1] = high & config->masks[0][1];
	work->to[2] = middle >> 32 & config->masks[0][2];
	work->from[0] = right_high >> 32 & config->masks[1][0];
	work->from[1] = right_high & config->masks[1][1];
	work->from[2] = right_low >> 32 & config->masks[1][2];
}

/* The first 16 bytes of both halves together, of the left one alone if that is all there is in clear. */
static __always_inline void join_halves(const struct balance_quic *config, struct quic_work *work, bool both)
{
	__u32 offset = config->length >> 1, shift = 8 * (offset & 7);
	__u32 *left = both ? work->to : work->from;
	__u64 high = (__u64)left[0] << 32 | left[1], middle = (__u64)left[2] << 32;

	if (both) {
		__u64 right_high = (__u64)work->from[0] << 32 | work->from[1];
		__u64 right_low = (__u64)work->from[2] << 32;

		if (offset < 8) {
			high |= right_high >> shift;
			middle |= right_high << 1 << (63 - shift) | right_low >> shift;
		} else {
			middle |= right_high >> shift;
		}
	}
	work->id[0] = bpf_cpu_to_be64(high);
	work->id[1] = bpf_cpu_to_be64(middle);
}

/* Section 5.5.2 of the draft. */
static __always_inline void decrypt_halves(const struct balance_quic *config, struct quic_work *work)
{
	/* The nonce is not needed: three passes do, unless the server ID reaches into the right half. */
	bool both = 2 * config->server_id_length > config->length;
	int pass, last = both ? 1 : 2;

	split_halves(config, work);
#pragma clang loop unroll(disable)
	for (pass = 4; pass >= last; pass--) {
		const __u32 *mask = config->masks[pass & 1];
		int i;

		work->block[0] = work->from[0];
		work->block[1] = work->from[1];
		work->block[2] = work->from[2];
		work->block[3] = (__u32)config->length << 8 | pass;
		aes(config->round_keys, AES_ENCRYPT, work->block);
		for (i = 0; i < 3; i++) {
			__u32 changed = (work->block[i] ^ work->to[i]) & mask[i];

			work->to[i] = work->from[i];
			work->from[i] = changed;
		}
	}
	join_halves(config, work, both);
}

/*
 * Turns the first 16 bytes of an ID into those in clear. A function of its own to the verifier, which so looks at it once and
 * not on every path that leads here.
 */
__noinline int balance_decrypt(const struct balance_quic *config, struct quic_work *work)
{
	if (!config || !work)
		return -1;
	if (config->length == BALANCE_AES_BLOCK)
		decrypt_block(config, work);
	else
		decrypt_halves(config, work);
	return 0;
}

/* The first `length` of 8 bytes. */
static __always_inline __u64 first_bytes(__u64 bytes, __u32 length)
{
	return length >= 8 ? bytes : bytes & ((1ull << (length * 8)) - 1);
}

/*
 * Reads the server ID of the packet's connection ID. False if that is not routable (section 4.1 of the draft): of a
 * codepoint without a configuration, or too short. A short header does not say how long its ID is; its issuer, who knows,
 * made it long enough.
 */
static __always_inline bool read_server_id(void *data, void *data_end, const struct packet *packet,
					   const struct balance_service *service, struct balance_server_id *server)
{
	struct quic_short *brief;
	struct balance_quic *config;
	__u32 length = 20, index, zero = 0;
	struct quic_work *work = bpf_map_lookup_elem(&quic_work_map, &zero);
	__u8 rotation;

	if (!work || packet->payload > 128)
		return false;
	work->id[2] = 0;
	brief = data + packet->payload + sizeof(struct udphdr);
	if ((void *)(brief + 1) > data_end)
		return false;
	if (brief->first & 0x80) {
		struct quic_long *header = (void *)brief;

		if ((void *)(header + 1) > data_end)
			return false;
		rotation = header->rotation;
		length = header->length;
		__builtin_memcpy(work->id, header->id, sizeof(header->id));
	} else {
		rotation = brief->rotation;
		__builtin_memcpy(work->id, brief->id, sizeof(brief->id));
	}
	index = service->id * BALANCE_QUIC_CONFIGS + (rotation >> 5);
	config = bpf_map_lookup_elem(&quic_map, &index);
	if (!config || length < 1 + config->length)
		return false;
	if (config->encrypted)
		balance_decrypt(config, work);
	server->service = service->id;
	server->config = rotation >> 5;
	server->length = config->server_id_length;
	work->id[0] = first_bytes(work->id[0], server->length);
	work->id[1] = server->length > 8 ? first_bytes(work->id[1], server->length - 8) : 0;
	__builtin_memcpy(server->id, work->id, sizeof(server->id));
	return true;
}

#endif
