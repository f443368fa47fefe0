/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SipHash-2-4 (J.-P. Aumasson, D. J. Bernstein: SipHash: a fast short-input PRF, 2012), as crates/wire/src/siphash.rs has it.
 */
#ifndef EXPRESSWAY_SIPHASH_H
#define EXPRESSWAY_SIPHASH_H

#include <linux/types.h>

#define SIP_ROTATE(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))
#define SIP_ROUND(a, b, c, d)                      \
	do {                                       \
		(a) += (b);                        \
		(b) = SIP_ROTATE(b, 13) ^ (a);     \
		(a) = SIP_ROTATE(a, 32);           \
		(c) += (d);                        \
		(d) = SIP_ROTATE(d, 16) ^ (c);     \
		(a) += (d);                        \
		(d) = SIP_ROTATE(d, 21) ^ (a);     \
		(c) += (b);                        \
		(b) = SIP_ROTATE(b, 17) ^ (c);     \
		(c) = SIP_ROTATE(c, 32);           \
	} while (0)

/* Of eight bytes as they lie in memory, the number whose lowest byte is the first. */
static __always_inline __u64 sip_word(__u64 bytes)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return bytes;
#else
	return __builtin_bswap64(bytes);
#endif
}

struct sip_state {
	__u64 a, b, c, d;
};

static __always_inline struct sip_state sip_begin(__u64 k0, __u64 k1)
{
	struct sip_state state = { k0 ^ 0x736f6d6570736575ull, k1 ^ 0x646f72616e646f6dull, k0 ^ 0x6c7967656e657261ull,
				   k1 ^ 0x7465646279746573ull };
	return state;
}

/* The next word of the text, by sip_word. */
static __always_inline void sip_take(struct sip_state *state, __u64 word)
{
	state->d ^= word;
	SIP_ROUND(state->a, state->b, state->c, state->d);
	SIP_ROUND(state->a, state->b, state->c, state->d);
	state->a ^= word;
}

/* The hash, after a last word of what is left of the text (less than eight bytes) and the text's length in the highest byte. */
static __always_inline __u64 sip_end(struct sip_state *state, __u64 rest, __u64 length)
{
	sip_take(state, rest | length << 56);
	state->c ^= 0xff;
	SIP_ROUND(state->a, state->b, state->c, state->d);
	SIP_ROUND(state->a, state->b, state->c, state->d);
	SIP_ROUND(state->a, state->b, state->c, state->d);
	SIP_ROUND(state->a, state->b, state->c, state->d);
	return state->a ^ state->b ^ state->c ^ state->d;
}

#endif
