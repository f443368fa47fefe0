// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lists the AF_XDP sockets that processes hold, with how full their rings are, which nothing else tells
 * (net/xdp/xsk_diag.c has sizes and statistics only). An iterator over the descriptors of all processes that the
 * reader's PID namespace shows: it runs when user space reads, and costs nothing else.
 *
 * Linux 5.11 or newer (bpf_sock_from_file), with BTF.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "sockets_shared.h"

#define AF_XDP 44
#define PIDTYPE_TGID 1

/* As far as they are read here. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct upid {
	int nr;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct signal_struct {
	struct pid *pids[4];
};

struct task_struct {
	char comm[SOCKET_NAME];
	struct signal_struct *signal;
	struct pid *thread_pid;
};

struct inode {
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
};

struct socket {
	struct sock *sk;
};

struct net_device {
	int ifindex;
};

struct xdp_ring {
	__u32 producer;
	__u32 consumer;
};

struct xsk_queue {
	__u32 nentries;
	struct xdp_ring *ring;
	__u64 invalid_descs;
	__u64 queue_empty_descs;
};

struct xsk_buff_pool {
	struct xsk_queue *fq;
	struct xsk_queue *cq;
};

struct xdp_umem {
	int id;
};

struct xdp_sock {
	struct xsk_queue *rx;
	struct xsk_queue *tx;
	struct net_device *dev;
	struct xdp_umem *umem;
	struct xsk_buff_pool *pool;
	__u16 queue_id;
	bool zc;
	__u64 rx_dropped;
	__u64 rx_queue_full;
	struct xsk_queue *fq_tmp;
	struct xsk_queue *cq_tmp;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

#pragma clang attribute pop

static __always_inline void read_ring(struct socket_ring *to, struct xsk_queue *queue)
{
	struct xdp_ring *ring;
	__u32 used;

	if (!queue)
		return;
	to->entries = BPF_CORE_READ(queue, nentries);
	ring = BPF_CORE_READ(queue, ring);
	to->produced = BPF_CORE_READ(ring, producer);
	to->consumed = BPF_CORE_READ(ring, consumer);
	used = to->produced - to->consumed;
	/* Programs write one of the two, and may write anything. */
	to->used = used > to->entries ? to->entries : used;
}

/* The process's number where the reader is. */
static __always_inline __u32 process_number(struct task_struct *task)
{
	struct task_struct *reader = (void *)bpf_get_current_task();
	unsigned int level = BPF_CORE_READ(reader, thread_pid, level);
	struct pid *pid = BPF_CORE_READ(task, signal, pids[PIDTYPE_TGID]);
	void *numbers = (void *)pid + bpf_core_field_offset(struct pid, numbers);
	int number = 0;

	bpf_probe_read_kernel(&number, sizeof(number),
			      numbers + level * bpf_core_type_size(struct upid) +
				      bpf_core_field_offset(struct upid, nr));
	return number;
}

SEC("iter/task_file")
int list_sockets(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct socket_record record = {};
	struct xsk_buff_pool *pool;
	struct xsk_queue *fill, *completion, *rx, *tx;
	struct socket *socket;
	struct xdp_sock *xs;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	xs = (void *)BPF_CORE_READ(socket, sk);
	if (!xs || BPF_CORE_READ((struct sock *)xs, __sk_common.skc_family) != AF_XDP)
		return 0;

	record.inode = BPF_CORE_READ(file, f_inode, i_ino);
	record.process = process_number(task);
	bpf_probe_read_kernel_str(record.name, sizeof(record.name), task->comm);
	record.netns = BPF_CORE_READ((struct sock *)xs, __sk_common.skc_net.net, ns.inum);
	record.ifindex = BPF_CORE_READ(xs, dev, ifindex);
	record.queue = BPF_CORE_READ(xs, queue_id);
	record.zero_copy = BPF_CORE_READ(xs, zc);
	record.umem = BPF_CORE_READ(xs, umem, id);
	pool = BPF_CORE_READ(xs, pool);
	rx = BPF_CORE_READ(xs, rx);
	tx = BPF_CORE_READ(xs, tx);
	/* Until it is bound they are the socket's own. */
	fill = pool ? BPF_CORE_READ(pool, fq) : BPF_CORE_READ(xs, fq_tmp);
	completion = pool ? BPF_CORE_READ(pool, cq) : BPF_CORE_READ(xs, cq_tmp);
	read_ring(&record.rx, rx);
	read_ring(&record.tx, tx);
	read_ring(&record.fill, fill);
	read_ring(&record.completion, completion);
	record.rx_dropped = BPF_CORE_READ(xs, rx_dropped);
	record.rx_ring_full = BPF_CORE_READ(xs, rx_queue_full);
	/*
	 * Wrong addresses in the fill ring are counted there (xp_alloc in net/xdp/xsk_buff_pool.c). XDP_STATISTICS and sock_diag tell
	 * the RX ring's number, where the kernel is the one that writes: always 0 (xsk_getsockopt in net/xdp/xsk.c, Linux 6.18).
	 */
	record.rx_invalid_descriptors = fill ? BPF_CORE_READ(fill, invalid_descs) : 0;
	record.fill_ring_empty = fill ? BPF_CORE_READ(fill, queue_empty_descs) : 0;
	record.tx_invalid_descriptors = tx ? BPF_CORE_READ(tx, invalid_descs) : 0;
	record.tx_ring_empty = tx ? BPF_CORE_READ(tx, queue_empty_descs) : 0;
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
