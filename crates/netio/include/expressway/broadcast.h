/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reads records that another process broadcasts through a ring in shared memory: no privilege, no library, and
 * nothing that a reader does or leaves undone holds the writer up.
 *
 * The writer (expressway_netio::broadcast) goes round the ring and overwrites the oldest. A reader that was too slow
 * is told how many records it lost, goes on with the newest, and never gets part of one.
 *
 *     struct expressway_broadcast reader;
 *     struct expressway_record record;
 *     if (expressway_broadcast_connect(&reader, "/run/feed/ring.sock") < 0) ...
 *     while (expressway_broadcast_wait(&reader, -1) >= 0)
 *         while (expressway_broadcast_next(&reader, &record) > 0)
 *             use(record.data, record.length);
 *     expressway_broadcast_close(&reader);
 *
 * A reader is used by one thread at a time. C11, Linux. Include this before other headers, or define _GNU_SOURCE.
 *
 * The ABI, version 1. The writer listens on a unix socket of type SOCK_SEQPACKET. A reader that connects gets one
 * struct expressway_broadcast_hello with two descriptors (SCM_RIGHTS): a struct expressway_broadcast_ring, of which no
 * writable mapping can be made, and the reader's own struct expressway_broadcast_control. Positions are counts of
 * bytes that never wrap; the byte of a position is position & (capacity - 1). A record begins on a multiple of 8:
 *
 *     word 0    length in the low 32 bits, flags in the next 16, source in the highest 16
 *     word 1    number of the record in the ring, from 0
 *     word 2    time stamp
 *     word 3    number in the feed
 *     then      `length` bytes, padded to a multiple of 8
 *
 * For each record the writer stores where it will end in `intent`, makes a release fence, and writes it; then it
 * stores `tail` with release, and then in `latest`, with release, where the last record began. A reader loads `tail`
 * with acquire, copies the record out, makes an acquire fence, and loads `intent`: if that is more than the capacity
 * beyond the record's position, what was copied is not to be used.
 *
 * A reader that wants to sleep stores 1 in `asleep`, makes a full fence, and looks at `tail` once more; the writer stores
 * `tail`, makes a full fence, and looks at `asleep`: one of them notices. A wake-up is a message of one byte on the
 * socket. A reader sends nothing on it. All numbers are in the byte order of the machine.
 */
#ifndef EXPRESSWAY_BROADCAST_H
#define EXPRESSWAY_BROADCAST_H

#include <expressway/connection.h>

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#define EXPRESSWAY_BROADCAST_MAGIC 0x52425058u /* "XPBR" */
#define EXPRESSWAY_BROADCAST_VERSION 1u
/* Bytes of a record before its data. */
#define EXPRESSWAY_BROADCAST_HEADER 32u

/* What `status` of the first message says. */
enum {
	EXPRESSWAY_BROADCAST_ACCEPTED = 0,
	EXPRESSWAY_BROADCAST_TOO_MANY_READERS = 1,
	EXPRESSWAY_BROADCAST_FAILED = 3,
};

/*
 * Flags of the records that `expressway recv --broadcast` publishes. One without any of the first five is a message in
 * order, or a datagram of a feed without numbers; one without any of the last three has no time stamp.
 */
enum {
	EXPRESSWAY_RECORD_LATE = 1,           /* a message out of order: its gap had been announced */
	EXPRESSWAY_RECORD_GAP = 2,            /* `data` is a uint64_t: messages missing, from `number` on */
	EXPRESSWAY_RECORD_SESSION = 4,        /* a new session; `data` is its name, 10 bytes */
	EXPRESSWAY_RECORD_RESET = 8,          /* messages are numbered anew, from `number` on */
	EXPRESSWAY_RECORD_END = 16,           /* the session is over; `number` is that behind its last message */
	EXPRESSWAY_RECORD_STAMP_NIC = 32,     /* `timestamp` is of the device's own clock */
	EXPRESSWAY_RECORD_STAMP_XDP = 64,     /* `timestamp` is of CLOCK_TAI, by the XDP program */
	EXPRESSWAY_RECORD_STAMP_KERNEL = 128, /* `timestamp` is of CLOCK_REALTIME, by the kernel */
};

/* The writer's first message. */
struct expressway_broadcast_hello {
	uint32_t magic;
	uint32_t version;
	uint32_t status;
	uint32_t largest;  /* longest record, in bytes */
	uint64_t capacity; /* bytes of the records, a power of two */
	uint64_t position; /* that the reader begins at */
	uint64_t sequence; /* number of the record there */
};

/* The ring. Only the writer stores. */
struct expressway_broadcast_ring {
	_Alignas(64) _Atomic uint64_t intent;
	_Alignas(64) _Atomic uint64_t tail;
	_Alignas(64) _Atomic uint64_t latest;
	_Alignas(4096) _Atomic uint64_t records[512];
};

/* What a reader says of itself. */
struct expressway_broadcast_control {
	_Alignas(64) _Atomic uint64_t position;
	_Alignas(64) _Atomic uint64_t asleep;
};

_Static_assert(sizeof(struct expressway_broadcast_hello) == 40, "ABI");
_Static_assert(sizeof(_Atomic uint64_t) == sizeof(uint64_t), "ABI");

/* A record, copied out of the ring. */
struct expressway_record {
	const unsigned char *data; /* valid until the next is asked for */
	uint32_t length;
	uint16_t flags;
	uint16_t source;
	uint64_t sequence;  /* number in the ring */
	uint64_t timestamp; /* the writer's, in nanoseconds; of `expressway recv` as the flags say */
	uint64_t number;    /* in the feed */
	uint64_t lost;      /* records in front of it that the reader was too slow for */
};

/* A connection to a writer. `lost` may be read, the rest is this header's. */
struct expressway_broadcast {
	int fd;
	uint32_t largest;
	uint64_t capacity;
	uint64_t position;
	uint64_t sequence;
	uint64_t lost; /* records that this reader was too slow for */
	const struct expressway_broadcast_ring *ring;
	struct expressway_broadcast_control *control;
	uint64_t *copy;
};

/* Ends the connection. */
static inline void expressway_broadcast_close(struct expressway_broadcast *reader)
{
	if (reader->ring)
		munmap((void *)(uintptr_t)reader->ring,
		       offsetof(struct expressway_broadcast_ring, records) + reader->capacity);
	if (reader->control)
		munmap(reader->control, sizeof(*reader->control));
	free(reader->copy);
	if (reader->fd >= 0)
		close(reader->fd);
	memset(reader, 0, sizeof(*reader));
	reader->fd = -1;
}

static inline int expressway_broadcast_hello(int fd, struct expressway_broadcast_hello *hello, int descriptors[2])
{
	int result = expressway_receive_greeting(fd, hello, sizeof(*hello), descriptors);
	if (result < 0)
		return result;
	if (hello->magic != EXPRESSWAY_BROADCAST_MAGIC)
		return -EPROTO;
	if (hello->version != EXPRESSWAY_BROADCAST_VERSION)
		return -EPROTONOSUPPORT;
	if (hello->status != EXPRESSWAY_BROADCAST_ACCEPTED)
		return hello->status == EXPRESSWAY_BROADCAST_TOO_MANY_READERS ? -EUSERS : -EIO;
	const uint64_t longest = EXPRESSWAY_BROADCAST_HEADER + ((uint64_t)hello->largest + 7) / 8 * 8;
	if (hello->capacity == 0 || (hello->capacity & (hello->capacity - 1)) || longest > hello->capacity ||
	    hello->position % 8)
		return -EPROTO;
	return 0;
}

static inline int expressway_broadcast_set_up(struct expressway_broadcast *reader,
					      const struct expressway_broadcast_hello *hello, const int descriptors[2])
{
	reader->largest = hello->largest;
	reader->capacity = hello->capacity;
	reader->position = hello->position;
	reader->sequence = hello->sequence;
	reader->ring = (const struct expressway_broadcast_ring *)expressway_map(
		descriptors[0], offsetof(struct expressway_broadcast_ring, records) + hello->capacity, PROT_READ);
	reader->control = (struct expressway_broadcast_control *)expressway_map(
		descriptors[1], sizeof(*reader->control), PROT_READ | PROT_WRITE);
	reader->copy = (uint64_t *)calloc(hello->largest / 8 + 1, 8);
	return reader->ring && reader->control && reader->copy ? 0 : -ENOMEM;
}

/*
 * Connects to the writer that listens at `path`; the first record is the one published next. 0, or a negative errno:
 * what connect(2) says; -EUSERS when as many readers as it admits are connected; -EPROTO or -EPROTONOSUPPORT when it
 * is no writer, or one of another version.
 */
static inline int expressway_broadcast_connect(struct expressway_broadcast *reader, const char *path)
{
	struct expressway_broadcast_hello hello;
	int descriptors[2] = {-1, -1};
	memset(reader, 0, sizeof(*reader));
	reader->fd = expressway_dial(path);
	int result = reader->fd < 0 ? reader->fd : 0;
	if (result == 0)
		result = expressway_broadcast_hello(reader->fd, &hello, descriptors);
	if (result == 0)
		result = expressway_broadcast_set_up(reader, &hello, descriptors);
	for (int i = 0; i < 2; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
	if (result < 0)
		expressway_broadcast_close(reader);
	return result;
}

static inline void expressway_broadcast_copy(const struct expressway_broadcast *reader, uint64_t position,
					     uint64_t *words, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t index = (position / 8 + i) & (reader->capacity / 8 - 1);
		words[i] = atomic_load_explicit(reader->ring->records + index, memory_order_relaxed);
	}
}

/* Whether what was copied since the position was looked at is whole. */
static inline int expressway_broadcast_whole(const struct expressway_broadcast *reader)
{
	/* Pairs with the writer's release fence behind its store of the intent. */
	atomic_thread_fence(memory_order_acquire);
	uint64_t intent = atomic_load_explicit(&reader->ring->intent, memory_order_relaxed);
	return intent <= reader->position + reader->capacity;
}

/* Takes the record at the reader's position, in front of `tail`. 1; 0 if it was overwritten; -EPIPE if it can't be. */
static inline int expressway_broadcast_take(struct expressway_broadcast *reader, uint64_t tail,
					    struct expressway_record *record)
{
	uint64_t head[4];
	expressway_broadcast_copy(reader, reader->position, head, 4);
	if (!expressway_broadcast_whole(reader))
		return 0;
	const uint32_t length = (uint32_t)head[0];
	const uint64_t words = ((uint64_t)length + 7) / 8, size = EXPRESSWAY_BROADCAST_HEADER + words * 8;
	if (length > reader->largest || size > tail - reader->position || head[1] < reader->sequence)
		return -EPIPE;
	expressway_broadcast_copy(reader, reader->position + EXPRESSWAY_BROADCAST_HEADER, reader->copy, words);
	if (!expressway_broadcast_whole(reader))
		return 0;
	record->data = (const unsigned char *)reader->copy;
	record->length = length;
	record->flags = (uint16_t)(head[0] >> 32);
	record->source = (uint16_t)(head[0] >> 48);
	record->sequence = head[1];
	record->timestamp = head[2];
	record->number = head[3];
	record->lost = head[1] - reader->sequence;
	reader->lost += record->lost;
	reader->sequence = head[1] + 1;
	reader->position += size;
	atomic_store_explicit(&reader->control->position, reader->position, memory_order_relaxed);
	return 1;
}

/* The next record. 1, 0 if there is none, -EPIPE if the writer wrote what cannot be. No system call. */
static inline int expressway_broadcast_next(struct expressway_broadcast *reader, struct expressway_record *record)
{
	for (int i = 0; i < 8; i++) {
		uint64_t tail = atomic_load_explicit(&reader->ring->tail, memory_order_acquire);
		if (tail == reader->position)
			return 0;
		if (tail < reader->position)
			return -EPIPE;
		int result = expressway_broadcast_take(reader, tail, record);
		if (result != 0)
			return result;
		/* Too slow: on with the newest; behind it, if that is gone too. Acquire: the tail is behind it. */
		uint64_t latest = atomic_load_explicit(&reader->ring->latest, memory_order_acquire);
		reader->position = latest > reader->position ? latest : tail;
	}
	return 0;
}

/*
 * Sleeps until records wait or `timeout_ms` is over (-1: for ever). 1 if records wait, 0 if not, -EPIPE when the
 * writer is gone and nothing waits any more.
 */
static inline int expressway_broadcast_wait(struct expressway_broadcast *reader, int timeout_ms)
{
	int result = 0;
	atomic_store_explicit(&reader->control->asleep, 1, memory_order_relaxed);
	/* The writer publishes and then reads the flag; here the flag is set and then the tail is read. */
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&reader->ring->tail, memory_order_acquire) == reader->position)
		result = expressway_sleep(reader->fd, timeout_ms);
	atomic_store_explicit(&reader->control->asleep, 0, memory_order_relaxed);
	if (atomic_load_explicit(&reader->ring->tail, memory_order_acquire) != reader->position)
		return 1;
	return result;
}

#endif
