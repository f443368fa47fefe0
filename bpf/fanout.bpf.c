// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Gives each datagram of a feed to many TCP connections, without a process in between.
 *
 *   unicast datagram ─ expressway_turn (tcx ingress): destination becomes a private multicast group ─┐
 *   multicast datagram ──────────────────────────────────────────────────────────────────────────────┤
 *      kernel: a clone for each UDP socket of the group, of which there is one a subscriber  ◀───────┘
 *      └▶ expressway_fan (sk_skb verdict): prefix, and on to the TCP socket of that subscriber
 *         └▶ kernel: psock backlog, which sends what the TCP socket has room for and keeps the rest
 *
 *   expressway_ends (sockops): makes connections known, and tells user space of those made and ended
 *
 * The backlog (sk_psock.ingress_skb, net/core/skmsg.c) is unbounded by itself: expressway_fan checks it, and skips
 * a subscriber that is too far behind until it has caught up. A gap marker then says how many datagrams it missed.
 * A datagram is delivered whole or not at all.
 *
 * Linux 6.6 or newer (tcx), with BTF.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "fanout_state.h"
#include "fanout_turn.h"

/* include/net/tcp_states.h */
#define TCP_ESTABLISHED 1
#define TCP_CLOSE_WAIT 8

/* The flag bits of sk_user_data (include/net/sock.h). */
#define USER_DATA_FLAGS 7UL

/* The members of kernel types that are read here; offsets come from the running kernel's BTF. */
struct sk_buff_head___kernel {
	__u32 qlen;
} __attribute__((preserve_access_index));

struct sk_psock {
	struct sk_buff_head___kernel ingress_skb;
} __attribute__((preserve_access_index));

struct sock {
	void *sk_user_data;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u32 write_seq;
	__u32 snd_una;
	__u64 bytes_acked;
} __attribute__((preserve_access_index));

extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym;

/* A connection's progress. */
struct progress {
	__u64 taken; /* bytes that its socket has taken since the connection was established */
	__u32 queue; /* datagrams that wait for it */
	bool usable;
};

static __always_inline struct progress progress_of(__u64 connection)
{
	struct progress progress = {};
	struct sk_psock *psock;
	struct tcp_sock *tcp;
	struct bpf_sock *sk;
	__u32 unacknowledged;
	unsigned long data;
	struct sock *sock;

	sk = bpf_map_lookup_elem(&connections_map, &connection);
	if (!sk)
		return progress;
	/* After RST a socket stays in the map until it is closed. */
	progress.usable = sk->state == TCP_ESTABLISHED || sk->state == TCP_CLOSE_WAIT;

	sock = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
	tcp = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
	/* snd_una is read before what is counted with it, so that `taken` is never too small. */
	unacknowledged = tcp->snd_una;
	unacknowledged = tcp->write_seq - unacknowledged;
	barrier();
	progress.taken = tcp->bytes_acked + unacknowledged;
	data = (unsigned long)sock->sk_user_data & ~USER_DATA_FLAGS;
	if (data) {
		psock = bpf_rdonly_cast((void *)data, bpf_core_type_id_kernel(struct sk_psock));
		progress.queue = psock->ingress_skb.qlen;
	}
	bpf_sk_release(sk);
	return progress;
}

/*
 * Whether data for the connection has waited for its socket for too long. A mark is how much had been given at some
 * time; the socket has to take all of it in time, and then the next mark is set.
 */
static __always_inline bool too_old(struct fanout_subscriber *subscriber, __u64 taken, __u64 lag)
{
	__u64 now = bpf_ktime_get_coarse_ns();

	if (!lag) {
		subscriber->mark = 0;
		return false;
	}
	if (!subscriber->mark || taken >= subscriber->mark) {
		subscriber->mark = subscriber->bytes;
		subscriber->marked = now;
		return false;
	}
	return now > subscriber->marked && now - subscriber->marked > max_age;
}

/* Why a subscriber is skipped, or FANOUT_GIVEN. */
static __always_inline enum fanout_counter judge(struct fanout_subscriber *subscriber)
{
	struct progress progress = progress_of(subscriber->connection);
	enum fanout_counter reason;
	__u64 lag = 0;

	if (!progress.usable)
		return FANOUT_SKIPPED_STATE;
	if (subscriber->bytes > progress.taken)
		lag = subscriber->bytes - progress.taken;
	subscriber->queue = progress.queue;
	if (subscriber->slow) {
		if (lag)
			return FANOUT_SKIPPED_CATCHING_UP;
		subscriber->slow = 0;
		subscriber->mark = 0;
	}
	if (lag > max_lag)
		reason = FANOUT_SKIPPED_BYTES;
	else if (progress.queue >= max_queue)
		reason = FANOUT_SKIPPED_QUEUE;
	else if (too_old(subscriber, progress.taken, lag))
		reason = FANOUT_SKIPPED_AGE;
	else
		return FANOUT_GIVEN;
	subscriber->slow = 1;
	tell(subscriber->connection, FANOUT_SLOW, reason);
	return reason;
}

/* A gap marker, in the size of the framing, and the length of the datagram after it. */
union header {
	struct {
		__be16 marker;
		__be16 missed[4];
		__be16 length;
	} __attribute__((packed)) len16;
	struct {
		__be32 marker;
		__be32 missed[2];
		__be32 length;
	} __attribute__((packed)) len32;
	__be16 length16;
	__be32 length32;
	__u8 bytes[16];
};

/* Prepends the datagram's length, and before it the number missed. Returns the bytes prepended, or -1. */
static __always_inline int frame(struct __sk_buff *skb, __u64 missed)
{
	union header header = {};
	__u32 length = skb->len;
	__u32 size = prefix;

	if (prefix == 0)
		return 0;
	if (prefix == 2 && missed) {
		size = sizeof(header.len16);
		header.len16.marker = 0xffff;
		header.len16.missed[0] = bpf_htons(missed >> 48);
		header.len16.missed[1] = bpf_htons(missed >> 32);
		header.len16.missed[2] = bpf_htons(missed >> 16);
		header.len16.missed[3] = bpf_htons(missed);
		header.len16.length = bpf_htons(length);
	} else if (prefix == 2) {
		header.length16 = bpf_htons(length);
	} else if (missed) {
		size = sizeof(header.len32);
		header.len32.marker = 0xffffffff;
		header.len32.missed[0] = bpf_htonl(missed >> 32);
		header.len32.missed[1] = bpf_htonl(missed);
		header.len32.length = bpf_htonl(length);
	} else {
		header.length32 = bpf_htonl(length);
	}
	if (size == 0 || size > sizeof(header))
		return -1;
	if (fail_room || bpf_skb_adjust_room(skb, size, 0, 0))
		return -1;
	/* Cannot fail: the room was made above. */
	if (bpf_skb_store_bytes(skb, 0, &header, size, 0))
		return -1;
	return size;
}

static __always_inline int skip(struct fanout_subscriber *subscriber, enum fanout_counter reason)
{
	__sync_fetch_and_add(&subscriber->skipped, 1);
	__sync_fetch_and_add(&subscriber->missed, 1);
	count(reason);
	return SK_DROP;
}

SEC("sk_skb/verdict")
int expressway_fan(struct __sk_buff *skb)
{
	struct fanout_subscriber *subscriber;
	enum fanout_counter reason;
	__u32 length = skb->len;
	__u64 cookie, missed;
	int put;

	cookie = bpf_get_socket_cookie(skb);
	subscriber = bpf_map_lookup_elem(&subscribers_map, &cookie);
	if (!subscriber) {
		count(FANOUT_DROPPED_UNKNOWN);
		return SK_DROP;
	}
	if (!subscriber->connection) {
		__sync_fetch_and_add(&subscriber->datagrams, 1);
		__sync_fetch_and_add(&subscriber->bytes, length);
		if (length == 0 && prefix == 0)
			count(FANOUT_DROPPED_EMPTY);
		return SK_DROP;
	}
	if (length == 0 && prefix == 0)
		return SK_DROP;

	reason = judge(subscriber);
	if (reason != FANOUT_GIVEN)
		return skip(subscriber, reason);

	missed = subscriber->missed;
	if (missed)
		missed = __sync_lock_test_and_set(&subscriber->missed, 0);
	put = frame(skb, missed);
	if (put < 0) {
		__sync_fetch_and_add(&subscriber->missed, missed);
		return skip(subscriber, FANOUT_SKIPPED_MEMORY);
	}
	if (missed)
		__sync_fetch_and_add(&subscriber->gaps, 1);
	__sync_fetch_and_add(&subscriber->datagrams, 1);
	__sync_fetch_and_add(&subscriber->bytes, length + put);
	count(FANOUT_GIVEN);
	cookie = subscriber->connection;
	/* No flag: to the socket's transmit side, not its receive queue. */
	return bpf_sk_redirect_hash(skb, &connections_map, &cookie, 0);
}

SEC("sockops")
int expressway_ends(struct bpf_sock_ops *ctx)
{
	__u32 port = ctx->local_port;
	__u64 cookie;

	/* Other programs may have requested state changes too. */
	if (ctx->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && ctx->op != BPF_SOCK_OPS_STATE_CB)
		return 1;
	if (bpf_get_netns_cookie(ctx) != listeners_netns || !bpf_map_lookup_elem(&ports_map, &port))
		return 1;
	cookie = bpf_get_socket_cookie(ctx);
	if (ctx->op == BPF_SOCK_OPS_STATE_CB) {
		tell(cookie, FANOUT_STATE, ctx->args[1]);
		return 1;
	}
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	/* Here, because user space cannot add a socket whose peer has already closed its side. */
	bpf_sock_hash_update(ctx, &connections_map, &cookie, BPF_NOEXIST);
	tell(cookie, FANOUT_CONNECTED, ctx->state);
	return 1;
}

SEC("tcx/ingress")
int expressway_turn(struct __sk_buff *skb)
{
	struct ethhdr ethernet;

	/* VLAN tags have been removed from the frame. Interfaces without Ethernet headers are not supported. */
	if (bpf_skb_load_bytes(skb, 0, &ethernet, sizeof(ethernet)) || ethernet.h_proto != skb->protocol)
		return CARRY_ON;
	if (ethernet.h_proto == bpf_htons(ETH_P_IP))
		return turn_ipv4(skb, sizeof(ethernet));
	if (ethernet.h_proto == bpf_htons(ETH_P_IPV6))
		return turn_ipv6(skb, sizeof(ethernet));
	return CARRY_ON;
}

/* Some helpers are for GPL-compatible programs only; this dual licence is compatible. */
char _license[] SEC("license") = "Dual BSD/GPL";
