/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reads packets that another process receives by AF_XDP, where they lie: no copy, no privilege, no library.
 *
 * The receiver (`expressway recv --lend`, or a program with expressway_netio::xsk::SharedUmem) lends packets; a
 * reader sees them in a read-only mapping of the receiver's UMEM and returns each when done with it. It may hold
 * as many frames as its quota says; while it holds them all, further packets for it are dropped and show as a gap
 * in `sequence`.
 *
 *     struct expressway_reader reader;
 *     struct expressway_desc descs[64];
 *     if (expressway_connect(&reader, "/run/feed/umem.sock") < 0) ...
 *     while (expressway_wait(&reader, -1) >= 0) {
 *         uint32_t count = expressway_receive(&reader, descs, 64);
 *         for (uint32_t i = 0; i < count; i++)
 *             use(expressway_data(&reader, &descs[i]), descs[i].len);
 *         expressway_return(&reader, descs, count);
 *     }
 *     expressway_close(&reader);
 *
 * A reader is used by one thread at a time. C11, Linux. Include this before other headers, or define _GNU_SOURCE.
 *
 * The ABI, version 1. The receiver listens on a unix socket of type SOCK_SEQPACKET. A reader that connects gets
 * one struct expressway_hello with two descriptors (SCM_RIGHTS): the UMEM, of which no writable mapping can be
 * made, and the reader's control memory, with two rings of struct expressway_ring at the offsets `packets` and
 * `returns`. Each has one producer and one consumer; indices run freely modulo 2^32, the slot of an index is
 * index & (entries - 1). The producer writes a slot and then stores its index with release; the consumer loads
 * that with acquire, reads the slot, and then stores its own with release, which gives the slot back.
 *
 *     packets    receiver -> reader    struct expressway_desc
 *     returns    reader -> receiver    uint64_t: any UMEM address within the frame given back
 *
 * A consumer that wants to sleep stores 1 in `flags`, makes a full fence, and looks for entries once more; a
 * producer stores its index, makes a full fence, and looks at `flags`: one of them notices. A wake-up is a
 * message of one byte on the socket. The end of the socket ends all lending: a reader sends nothing on it. All
 * numbers are in the byte order of the machine.
 */
#ifndef EXPRESSWAY_UMEM_H
#define EXPRESSWAY_UMEM_H

#include <expressway/connection.h>

#include <stdatomic.h>
#include <stddef.h>

#define EXPRESSWAY_MAGIC 0x4d555058u /* "XPUM" */
#define EXPRESSWAY_VERSION 1u

/* What `status` of the first message says. */
enum expressway_status {
	EXPRESSWAY_ACCEPTED = 0,
	EXPRESSWAY_TOO_MANY_READERS = 1,
	EXPRESSWAY_NO_FRAMES = 2,
	EXPRESSWAY_FAILED = 3,
};

/*
 * Flags of a descriptor of `expressway recv --lend`: where the payload starts, and who stamped the
 * packet. One without either of the last two has no time stamp.
 */
enum {
	EXPRESSWAY_DESC_PAYLOAD = 0x0fff,   /* mask: bytes in front of the UDP payload */
	EXPRESSWAY_DESC_STAMP_NIC = 0x1000, /* `timestamp` is of the device's own clock */
	EXPRESSWAY_DESC_STAMP_XDP = 0x2000, /* `timestamp` is of CLOCK_TAI, by the XDP program */
};

/* The receiver's first message. */
struct expressway_hello {
	uint32_t magic;
	uint32_t version;
	uint32_t status;
	uint32_t frame_size;     /* bytes, a power of two */
	uint64_t umem_length;    /* bytes, whole pages of the kind that it is made of */
	uint32_t entries;        /* of either ring, a power of two */
	uint32_t quota;          /* frames that the reader may hold */
	uint64_t packets;        /* offset of the packets' ring in the control memory */
	uint64_t returns;        /* offset of the returns' ring */
	uint64_t control_length; /* bytes of the control memory */
	uint64_t reserved;
};

/* The descriptor of a lent packet. */
struct expressway_desc {
	uint64_t addr;      /* where it starts in the UMEM */
	uint64_t timestamp; /* the receiver's, in nanoseconds; of `expressway recv` as the flags say */
	uint64_t sequence;  /* of the packets meant for this reader; a gap is what the quota had no room for */
	uint32_t len;       /* bytes, from the Ethernet header on */
	uint16_t flags;     /* what the receiver says of it */
	uint16_t source;    /* number of the receiver's socket that it came in on */
};

/* One of the two rings, with its entries behind it. */
struct expressway_ring {
	_Alignas(64) _Atomic uint32_t producer;
	_Alignas(64) _Atomic uint32_t consumer;
	_Alignas(64) _Atomic uint32_t flags;
	_Alignas(64) unsigned char entries[64];
};

_Static_assert(sizeof(struct expressway_hello) == 64, "ABI");
_Static_assert(sizeof(struct expressway_desc) == 32, "ABI");
_Static_assert(offsetof(struct expressway_ring, entries) == 192, "ABI");
_Static_assert(sizeof(_Atomic uint32_t) == sizeof(uint32_t), "ABI");

/* A connection to a receiver. `quota` may be read, the rest is this header's. */
struct expressway_reader {
	int fd;
	uint32_t quota;
	uint32_t entries;
	uint32_t taken;    /* consumer index of packets */
	uint32_t returned; /* producer index of returns */
	const unsigned char *umem;
	uint64_t umem_length;
	unsigned char *control;
	uint64_t control_length;
	struct expressway_ring *packets;
	struct expressway_ring *returns;
};

/* Ends the connection. What was not returned is the receiver's again. */
static inline void expressway_close(struct expressway_reader *reader)
{
	if (reader->umem)
		munmap((void *)(uintptr_t)reader->umem, reader->umem_length);
	if (reader->control)
		munmap(reader->control, reader->control_length);
	if (reader->fd >= 0)
		close(reader->fd);
	memset(reader, 0, sizeof(*reader));
	reader->fd = -1;
}

static inline int expressway_receive_hello(int fd, struct expressway_hello *hello, int descriptors[2])
{
	int result = expressway_receive_greeting(fd, hello, sizeof(*hello), descriptors);
	if (result < 0)
		return result;
	if (hello->magic != EXPRESSWAY_MAGIC)
		return -EPROTO;
	if (hello->version != EXPRESSWAY_VERSION)
		return -EPROTONOSUPPORT;
	switch (hello->status) {
	case EXPRESSWAY_ACCEPTED:
		return 0;
	case EXPRESSWAY_TOO_MANY_READERS:
		return -EUSERS;
	case EXPRESSWAY_NO_FRAMES:
		return -ENOSPC;
	default:
		return -EIO;
	}
}

static inline int expressway_set_up(struct expressway_reader *reader, const struct expressway_hello *hello,
				    const int descriptors[2])
{
	const uint64_t head = offsetof(struct expressway_ring, entries);
	const uint64_t limit = hello->control_length, entries = hello->entries;
	if (entries == 0 || (entries & (entries - 1)) || hello->packets % 64 || hello->returns % 64 ||
	    hello->packets > limit || head + entries * sizeof(struct expressway_desc) > limit - hello->packets ||
	    hello->returns > limit || head + entries * sizeof(uint64_t) > limit - hello->returns)
		return -EPROTO;
	reader->umem = expressway_map(descriptors[0], hello->umem_length, PROT_READ);
	reader->umem_length = hello->umem_length;
	reader->control = expressway_map(descriptors[1], limit, PROT_READ | PROT_WRITE);
	reader->control_length = limit;
	if (!reader->umem || !reader->control)
		return -ENOMEM;
	reader->entries = hello->entries;
	reader->quota = hello->quota;
	reader->packets = (struct expressway_ring *)(void *)(reader->control + hello->packets);
	reader->returns = (struct expressway_ring *)(void *)(reader->control + hello->returns);
	reader->taken = atomic_load_explicit(&reader->packets->consumer, memory_order_relaxed);
	reader->returned = atomic_load_explicit(&reader->returns->producer, memory_order_relaxed);
	return 0;
}

/*
 * Connects to the receiver that listens at `path`. 0, or a negative errno: what connect(2) says; -EUSERS when as
 * many readers as it admits are connected; -ENOSPC when its UMEM has no frames for another quota; -EPROTO or
 * -EPROTONOSUPPORT when it is no receiver, or one of another version.
 */
static inline int expressway_connect(struct expressway_reader *reader, const char *path)
{
	struct expressway_hello hello;
	int descriptors[2] = {-1, -1};
	memset(reader, 0, sizeof(*reader));
	reader->fd = expressway_dial(path);
	int result = reader->fd < 0 ? reader->fd : 0;
	if (result == 0)
		result = expressway_receive_hello(reader->fd, &hello, descriptors);
	if (result == 0)
		result = expressway_set_up(reader, &hello, descriptors);
	for (int i = 0; i < 2; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
	if (result < 0)
		expressway_close(reader);
	return result;
}

/* Takes up to `max` packets, oldest first. No system call. Each must be returned. */
static inline uint32_t expressway_receive(struct expressway_reader *reader, struct expressway_desc *descs,
					  uint32_t max)
{
	/* Acquire: the entries are written before the index says so. */
	uint32_t produced = atomic_load_explicit(&reader->packets->producer, memory_order_acquire);
	uint32_t count = produced - reader->taken;
	if (count > reader->entries)
		return 0; /* impossible: expressway_wait says that the receiver is gone */
	if (count > max)
		count = max;
	for (uint32_t i = 0; i < count; i++) {
		size_t slot = (reader->taken + i) & (reader->entries - 1);
		memcpy(&descs[i], reader->packets->entries + slot * sizeof(*descs), sizeof(*descs));
	}
	reader->taken += count;
	/* Release: the slots are read before the receiver may write them again. */
	atomic_store_explicit(&reader->packets->consumer, reader->taken, memory_order_release);
	return count;
}

/* The packet's bytes, valid until it is returned; NULL if it does not lie in the UMEM. */
static inline const unsigned char *expressway_data(const struct expressway_reader *reader,
						   const struct expressway_desc *desc)
{
	if (desc->addr > reader->umem_length || desc->len > reader->umem_length - desc->addr)
		return NULL;
	return reader->umem + desc->addr;
}

/*
 * The UDP payload of a packet that `expressway recv --lend` lent, and its length: the flags of its descriptor say
 * where the payload starts, and the packet ends where that does. NULL if it does not lie in the UMEM.
 */
static inline const unsigned char *expressway_payload(const struct expressway_reader *reader,
						      const struct expressway_desc *desc, uint32_t *len)
{
	const unsigned char *packet = expressway_data(reader, desc);
	const uint32_t start = desc->flags & EXPRESSWAY_DESC_PAYLOAD;

	if (!packet || start > desc->len)
		return NULL;
	*len = desc->len - start;
	return packet + start;
}

/* Gives packets back, in any order. No system call. */
static inline void expressway_return(struct expressway_reader *reader, const struct expressway_desc *descs,
				     uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		/* There is room: the receiver lends no more than the ring has entries. */
		size_t slot = (reader->returned + i) & (reader->entries - 1);
		memcpy(reader->returns->entries + slot * sizeof(uint64_t), &descs[i].addr, sizeof(uint64_t));
	}
	reader->returned += count;
	/* Release: the entries, and all reading of the frames, come before the index. */
	atomic_store_explicit(&reader->returns->producer, reader->returned, memory_order_release);
}

/*
 * Sleeps until packets wait or `timeout_ms` is over (-1: for ever). 1 if packets wait, 0 if not, -EPIPE when the
 * receiver is gone and nothing waits any more.
 */
static inline int expressway_wait(struct expressway_reader *reader, int timeout_ms)
{
	int result = 0;
	atomic_store_explicit(&reader->packets->flags, 1, memory_order_relaxed);
	/* The receiver publishes and then reads the flag; here the flag is set and then the ring is read. */
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&reader->packets->producer, memory_order_acquire) == reader->taken)
		result = expressway_sleep(reader->fd, timeout_ms);
	atomic_store_explicit(&reader->packets->flags, 0, memory_order_relaxed);
	uint32_t waiting = atomic_load_explicit(&reader->packets->producer, memory_order_acquire) - reader->taken;
	if (waiting > reader->entries)
		return -EPIPE;
	return waiting ? 1 : result;
}

#endif
