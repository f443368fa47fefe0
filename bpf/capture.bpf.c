// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Copies packets to user space from wherever they pass an interface; none is changed, delayed or dropped.
 *
 *   driver ─ capture_entry ▶ XDP program of whoever ▶ capture_exit ─┬▶ redirect: capture_redirecting, capture_xsk_native, …
 *                                                                   └▶ kernel: capture_receive, capture_drop
 *   AF_XDP socket, copy mode ─ capture_direct ▶ driver         (any process's)
 *   AF_XDP socket, zero-copy ─ capture_peek, capture_batch ▶ driver
 *   kernel ─ capture_transmit ▶ driver
 *   XDP program of whoever ─ redirect to an interface ─ capture_forward ▶ driver
 *
 * Where an XDP program is not captured at, because it has just come or cannot be, its packets are captured where they are
 * redirected and where the stack receives them; nothing shows what it drops or sends back.
 *
 * Packets of VLANs and bonds are captured on the devices below, where XDP has them, and shown as their interface's.
 *
 * User space opens this object once for each group of programs, with the filter's code put into capture_filter, and
 * has all of them share the maps of the first. A packet is copied by the kernel straight from where it lies, fragments
 * included, into the buffer of the CPU.
 *
 * Linux 5.18 or newer, with BTF.
 */
#include "capture_state.h"
#include "capture_zero_copy.h"
#include "drop_reason.h"
#include "xdp_drop_seen.h"

/* include/uapi/linux/if_arp.h: devices with Ethernet headers. */
#define ARPHRD_ETHER 1
#define ARPHRD_LOOPBACK 772

#define AF_XDP 44
/* include/uapi/linux/perf_event.h */
#define PERF_BPF_EVENT_PROG_LOAD 1
#define NETDEV_TX_BUSY 0x10
#define ETHERNET 14
/* Room for an Ethernet header, which is all that most packets have in front; in whole words. */
#define PREFIX_USUAL 16
/* `mac_header` of a packet that has none yet. */
#define NO_HEADER ((__u16)~0U)

/* The flags of an output helper: `length` octets of the packet on this CPU's buffer. */
#define OUTPUT(length) ((__u64)(length) << 32 | BPF_F_CURRENT_CPU)

static __always_inline struct scratch *scratch_of(enum hook hook)
{
	__u32 key = hook;

	return bpf_map_lookup_elem(&scratch_map, &key);
}

static __always_inline struct current *current_of(__u32 key)
{
	return bpf_map_lookup_elem(&current_map, &key);
}

static __always_inline void clear(struct capture_record *record, enum capture_kind kind, __u64 id)
{
	__builtin_memset(record, 0, sizeof(*record));
	record->time = bpf_ktime_get_ns();
	record->id = id;
	record->kind = kind;
	record->queue = ~0U;
}

/* XDP. */

/* The target of the packet in the xdp_buff. */
static __always_inline struct capture_target *target_of_xdp(const struct xdp_buff *xdp, __u32 *ifindex, __u32 *strip)
{
	struct capture_target *target = target_of(xdp->rxq->dev, ifindex);
	__be16 octets[TAGS / sizeof(__be16)] = {};

	*strip = 0;
	if (!target || !(target->flags & CAPTURE_TAGGED))
		return target;
	if (xdp->data_end - xdp->data >= ADDRESSES + TAGS)
		bpf_probe_read_kernel(octets, sizeof(octets), xdp->data + ADDRESSES);
	return vlan_of(target, *ifindex, octets, strip);
}

/* Whether the filter takes what the xdp_buff holds, without `strip` octets behind the addresses. */
static __always_inline int judge_xdp(struct scratch *scratch, struct xdp_buff *xdp, __u32 length, __u32 strip)
{
	/* 64 bits, or the verifier forgets the bound of the upper ones. */
	__u64 held = xdp->data_end - xdp->data;

	if (!filtered)
		return FILTER_YES;
	if (strip) {
		/* As long as a packet with tags is. */
		held -= ADDRESSES + strip;
		if (held > needed)
			held = needed;
		asm volatile("" : "+r"(held));
		if (held > CAPTURE_HEAD - ADDRESSES)
			held = CAPTURE_HEAD - ADDRESSES;
		bpf_probe_read_kernel(&scratch->head, ADDRESSES, xdp->data);
		if (bpf_probe_read_kernel(scratch->head.octets + ADDRESSES, held, xdp->data + ADDRESSES + strip))
			return FILTER_YES;
		return capture_filter(&scratch->head, held + ADDRESSES, length - strip);
	}
	if (held > needed)
		held = needed;
	asm volatile("" : "+r"(held));
	if (held > CAPTURE_HEAD)
		return FILTER_YES;
	if (held && bpf_probe_read_kernel(&scratch->head, held, xdp->data))
		held = 0;
	return capture_filter(&scratch->head, held, length);
}

/* Captures the packet if it is a target's, and keeps in mind that it was looked at. */
static __always_inline void output_xdp(struct xdp_buff *xdp, struct scratch *scratch, struct current *current,
				       enum hook hook, enum capture_kind kind, int result, __u16 drop)
{
	struct capture_record *record = &scratch->record;
	__u32 payload = snaplen, length, ifindex, strip;
	struct capture_target *target;
	struct capture_counts *counts;
	int judgement;

	current->packet = (__u64)xdp;
	current->matched = 0;
	target = target_of_xdp(xdp, &ifindex, &strip);
	counts = target ? counts_of(target->slot) : NULL;
	if (!counts)
		return;
	length = bpf_xdp_get_buff_len((struct xdp_md *)xdp);
	__sync_fetch_and_add(&counts->seen, 1);
	judgement = judge_xdp(scratch, xdp, length, strip);
	if (judgement == FILTER_NO)
		return;
	__sync_fetch_and_add(&counts->matched, 1);
	clear(record, kind, identifier(hook, ++scratch->packets));
	record->ifindex = target->shown;
	record->strip = strip;
	record->queue = xdp->rxq->queue_index;
	record->length = length;
	record->result = result;
	record->drop = drop;
	payload += strip;
	if (judgement == FILTER_UNDECIDED)
		record->flags = CAPTURE_UNDECIDED;
	if (judgement == FILTER_UNDECIDED || payload > CAPTURE_MAX)
		payload = CAPTURE_MAX;
	if (payload > length)
		payload = length;
	record->payload = payload;
	if (bpf_xdp_output(xdp, &events_map, OUTPUT(payload), record, sizeof(*record))) {
		__sync_fetch_and_add(&counts->lost, 1);
		return;
	}
	current->id = record->id;
	current->ifindex = ifindex;
	current->shown = target->shown;
	current->slot = target->slot;
	current->matched = 1;
}

/* The place of a buffer in passed_map. */
static __always_inline __u64 *place_of(__u64 head)
{
	__u32 zero = 0;
	struct passed *passed = bpf_map_lookup_elem(&passed_map, &zero);

	/* Buffers are apart by half a page at least, but for those of a few octets. */
	return passed ? &passed->heads[(head >> 9 ^ head >> 18) % PASSED] : NULL;
}

/* The stack will receive a packet that was captured. */
static __always_inline void pass(const struct xdp_buff *xdp)
{
	__u64 head = (__u64)xdp->data_hard_start;
	__u64 *place = place_of(head);

	if (place)
		*place = head;
}

/* User space attaches the two to an XDP program. */
SEC("?fentry")
int BPF_PROG(capture_entry, struct xdp_buff *xdp)
{
	struct scratch *scratch = scratch_of(HOOK_XDP);
	struct current *current = current_of(0);

	if (scratch && current)
		output_xdp(xdp, scratch, current, HOOK_XDP, CAPTURE_XDP_ENTRY, 0, 0);
	return 0;
}

/* The packet that was captured at entry once more, as the program has left it. */
static __always_inline void output_exit(struct xdp_buff *xdp, struct scratch *scratch, struct current *current)
{
	struct capture_record *record = &scratch->record;
	struct capture_counts *counts = counts_of(current->slot);
	struct capture_target *target;
	__u32 payload = snaplen, length, ifindex, strip;

	if (!counts)
		return;
	/* The program may have taken its tags out, or put others in. */
	target = target_of_xdp(xdp, &ifindex, &strip);
	if (!target || target->shown != current->shown)
		strip = 0;
	length = bpf_xdp_get_buff_len((struct xdp_md *)xdp);
	payload += strip;
	if (payload > CAPTURE_MAX)
		payload = CAPTURE_MAX;
	if (payload > length)
		payload = length;
	record->kind = CAPTURE_XDP_EXIT;
	record->queue = xdp->rxq->queue_index;
	record->strip = strip;
	record->length = length;
	record->payload = payload;
	__sync_fetch_and_add(&counts->seen, 1);
	__sync_fetch_and_add(&counts->matched, 1);
	if (bpf_xdp_output(xdp, &events_map, OUTPUT(payload), record, sizeof(*record)))
		__sync_fetch_and_add(&counts->lost, 1);
}

SEC("?fexit")
int BPF_PROG(capture_exit, struct xdp_buff *xdp, int verdict)
{
	/* Whether the packet is looked at or not, so that the next drop is known from this one. */
	__u16 drop = verdict == XDP_DROP ? seen_drop(xdp) : 0;
	struct scratch *scratch = scratch_of(HOOK_XDP_EXIT);
	struct current *current = current_of(0);

	if (!scratch || !current)
		return 0;
	current->head = verdict < XDP_PASS || verdict > XDP_REDIRECT ? (__u64)xdp->data_hard_start : 0;
	if (!at_entry) {
		output_xdp(xdp, scratch, current, HOOK_XDP_EXIT, CAPTURE_XDP_EXIT, verdict, drop);
	} else if (current->packet != (__u64)xdp) {
		/* It came before this was attached. */
		current->packet = 0;
		return 0;
	} else if (current->matched && (verdicts || at_exit)) {
		clear(&scratch->record, CAPTURE_VERDICT, current->id);
		scratch->record.result = verdict;
		scratch->record.drop = drop;
		scratch->record.ifindex = current->shown;
		if (at_exit)
			output_exit(xdp, scratch, current);
		else
			bpf_xdp_output(xdp, &events_map, OUTPUT(0), &scratch->record, sizeof(scratch->record));
	}
	if (verdict == XDP_PASS && current->matched)
		pass(xdp);
	/* Redirects are told of the packet next; nothing else is, and the next one may lie where this one does. */
	if (verdict != XDP_REDIRECT)
		current->packet = 0;
	return 0;
}

/* A packet is redirected: it is captured, unless its program is captured at. */
static __always_inline int redirecting(struct xdp_buff *xdp)
{
	struct scratch *scratch = scratch_of(HOOK_REDIRECTING);
	struct current *current = current_of(0);

	if (scratch && current && current->packet != (__u64)xdp)
		output_xdp(xdp, scratch, current, HOOK_REDIRECTING, CAPTURE_XDP_EXIT, XDP_REDIRECT, 0);
	return 0;
}

SEC("fentry/xdp_do_redirect")
int BPF_PROG(capture_redirecting_native, struct net_device *dev, struct xdp_buff *xdp)
{
	return redirecting(xdp);
}

SEC("fentry/xdp_do_generic_redirect")
int BPF_PROG(capture_redirecting_generic, struct net_device *dev, struct sk_buff *skb, struct xdp_buff *xdp)
{
	return redirecting(xdp);
}

/* What became of the redirect of the packet that was captured last on this CPU. */
static __always_inline int redirected(struct xdp_buff *xdp, __u64 inode, int result)
{
	struct scratch *scratch = scratch_of(HOOK_REDIRECT);
	struct current *current = current_of(0);

	if (!scratch || !current || !current->matched || current->packet != (__u64)xdp ||
	    current->ifindex != (__u32)xdp->rxq->dev->ifindex)
		return 0;
	clear(&scratch->record, CAPTURE_REDIRECT, current->id);
	scratch->record.ifindex = current->shown;
	scratch->record.inode = inode;
	scratch->record.result = result;
	bpf_xdp_output(xdp, &events_map, OUTPUT(0), &scratch->record, sizeof(scratch->record));
	return 0;
}

SEC("fexit/__xsk_map_redirect")
int BPF_PROG(capture_xsk_native, struct xdp_sock *xs, struct xdp_buff *xdp, int result)
{
	return redirected(xdp, inode_of(&xs->sk), result);
}

SEC("fexit/xsk_generic_rcv")
int BPF_PROG(capture_xsk_generic, struct xdp_sock *xs, struct xdp_buff *xdp, int result)
{
	return redirected(xdp, inode_of(&xs->sk), result);
}

/* A redirect has ended: what it was of is known no more, and the next packet may lie where that one did. */
static __always_inline int redirect_ends(struct xdp_buff *xdp, int result)
{
	struct current *current = current_of(0);

	if (result)
		redirected(xdp, 0, result);
	if (current)
		current->packet = 0;
	return 0;
}

SEC("fexit/xdp_do_redirect")
int BPF_PROG(capture_redirect_native, struct net_device *dev, struct xdp_buff *xdp, void *program, int result)
{
	return redirect_ends(xdp, result);
}

SEC("fexit/xdp_do_generic_redirect")
int BPF_PROG(capture_redirect_generic, struct net_device *dev, struct sk_buff *skb, struct xdp_buff *xdp,
	     void *program, int result)
{
	return redirect_ends(xdp, result);
}

/* XDP programs that come. */

static __always_inline void tell(const struct bpf_prog *program, enum capture_change_kind kind)
{
	struct capture_change change = { .time = bpf_ktime_get_ns(), .kind = kind };

	if (program)
		change.program = program->aux->id;
	bpf_ringbuf_output(&changes_map, &change, sizeof(change), BPF_RB_FORCE_WAKEUP);
}

/*
 * By dev_xdp_install in net/core/dev.c, once the driver has it; by BPF_PROG_TEST_RUN too. For a grace period of RCU
 * the device names the one before, which runs no more: what is received is not taken for captured by its word.
 */
SEC("fentry/bpf_prog_change_xdp")
int BPF_PROG(capture_placed, struct bpf_prog *before, struct bpf_prog *after)
{
	__u32 id;

	if (before) {
		id = before->aux->id;
		bpf_map_delete_elem(&traced_map, &id);
	}
	tell(after, CAPTURE_PLACED);
	return 0;
}

/* By bpf_prog_load in kernel/bpf/syscall.c, before the loader has a descriptor of it. */
SEC("fentry/perf_event_bpf_event")
int BPF_PROG(capture_loaded, struct bpf_prog *program, __u32 event)
{
	if (program->type == BPF_PROG_TYPE_XDP && event == PERF_BPF_EVENT_PROG_LOAD)
		tell(program, CAPTURE_LOADED);
	return 0;
}

/* sk_buffs. */

/*
 * Puts into `room` what goes in front of the packet's data: the Ethernet header that was taken off, the VLAN tag that
 * the device has taken out or will put in, or a header with no addresses where the packet has none. `skip` becomes the
 * octets of the data that it stands for. `at_start`: the data begins with the Ethernet header. Returns its length, or a negative value for a packet that cannot be shown.
 */
static __always_inline int front(__u8 *room, const struct sk_buff *skb, __u16 type, bool at_start, __u32 *skip)
{
	__u8 *mac = at_start ? skb->data : skb->head + skb->mac_header;
	__be16 tag[2] = { skb->vlan_proto, bpf_htons(skb->vlan_tci) };
	__be16 protocol = skb->protocol;
	__u64 off;
	bool tagged = tag[0];

	*skip = 0;
	if ((!at_start && skb->mac_header == NO_HEADER) || (type != ARPHRD_ETHER && type != ARPHRD_LOOPBACK)) {
		__builtin_memset(room, 0, ADDRESSES);
		__builtin_memcpy(room + ADDRESSES, &protocol, sizeof(protocol));
		return ETHERNET;
	}
	off = skb->data - mac;
	if (off == 0) {
		if (!tagged)
			return 0;
		*skip = ADDRESSES;
		bpf_probe_read_kernel(room, ADDRESSES, mac);
		__builtin_memcpy(room + ADDRESSES, tag, VLAN_TAG);
		return ADDRESSES + VLAN_TAG;
	}
	if (off < ETHERNET || off > CAPTURE_PREFIX - VLAN_TAG)
		return -1;
	asm volatile("" : "+r"(off));
	if (off < ETHERNET || off > CAPTURE_PREFIX - VLAN_TAG)
		return -1;
	if (!tagged) {
		bpf_probe_read_kernel(room, off, mac);
		return off;
	}
	bpf_probe_read_kernel(room, ADDRESSES, mac);
	__builtin_memcpy(room + ADDRESSES, tag, VLAN_TAG);
	bpf_probe_read_kernel(room + ADDRESSES + VLAN_TAG, off - ADDRESSES, mac + ADDRESSES);
	return off + VLAN_TAG;
}

/* The target of a packet with that prefix in `scratch`, which stands for `skip` octets of its data. */
static __always_inline struct capture_target *target_of_skb(const struct scratch *scratch, const struct sk_buff *skb,
							    struct capture_target *target, __u32 ifindex, int prefix,
							    __u32 skip, __u32 *strip)
{
	__be16 octets[TAGS / sizeof(__be16)];
	int i;

	if (!(target->flags & CAPTURE_TAGGED))
		return target;
	__builtin_memcpy(octets, scratch->prefix + ADDRESSES, sizeof(octets));
#pragma unroll
	for (i = 0; i < (int)(TAGS / sizeof(__be16)); i++) {
		int at = ADDRESSES + i * (int)sizeof(__be16);

		if (at >= prefix)
			bpf_probe_read_kernel(octets + i, sizeof(*octets), skb->data + skip + (at - prefix));
	}
	if (prefix + skb->len - skip < ADDRESSES + TAGS)
		octets[0] = 0;
	return vlan_of(target, ifindex, octets, strip);
}

/*
 * Fills record and prefix for a packet of the target, or of a VLAN on it, as far as the filter lets it. NULL: there is
 * nothing to send.
 */
static __always_inline struct capture_counts *describe(struct scratch *scratch, const struct sk_buff *skb, __u16 type,
						       enum hook hook, enum capture_kind kind, __u32 ifindex,
						       struct capture_target *target)
{
	struct capture_record *record = &scratch->record;
	struct capture_counts *counts;
	__u32 payload = snaplen;
	__u64 prefix, held;
	__u32 length, skip, strip = 0;
	int result = FILTER_YES;
	struct sock *sk = skb->sk;
	bool at_start;
	int made;

	/* Read once: the verifier knows that it is not null only of what was compared. */
	asm volatile("" : "+r"(sk));
	/* What is about to be sent. AF_XDP does not say where its header is. */
	at_start = hook == HOOK_DIRECT || hook == HOOK_TRANSMIT || hook == HOOK_FORWARD_GENERIC;
	if (hook == HOOK_DROP && kind == CAPTURE_KERNEL_TRANSMIT && skb->mac_header == NO_HEADER)
		at_start = sk && sk->__sk_common.skc_family == AF_XDP;
	made = front(scratch->prefix, skb, type, at_start, &skip);
	if (made < 0)
		return NULL;
	target = target_of_skb(scratch, skb, target, ifindex, made, skip, &strip);
	counts = target ? counts_of(target->slot) : NULL;
	if (!counts)
		return NULL;
	__sync_fetch_and_add(&counts->seen, 1);
	prefix = made;
	if (prefix > CAPTURE_PREFIX || skip > skb->len)
		return NULL;
	length = prefix + skb->len - skip;
	if (filtered) {
		held = skb->len - skb->data_len;
		held = held > skip ? held - skip : 0;
		if (held > needed + strip)
			held = needed + strip;
		asm volatile("" : "+r"(held), "+r"(prefix));
		if (held > CAPTURE_HEAD + TAGS || prefix > CAPTURE_PREFIX)
			return NULL;
		if (held > CAPTURE_HEAD)
			held = CAPTURE_HEAD;
		if (prefix > PREFIX_USUAL)
			__builtin_memcpy(scratch->room, scratch->prefix, CAPTURE_PREFIX);
		else if (prefix)
			__builtin_memcpy(scratch->room, scratch->prefix, PREFIX_USUAL);
		if (held && bpf_probe_read_kernel(scratch->room + prefix, held, skb->data + skip))
			held = 0;
		held += prefix;
		if (strip) {
			/* The two overlap: the helper copies from the beginning on (copy_from_kernel_nofault in mm/maccess.c). */
			bpf_probe_read_kernel(scratch->room + ADDRESSES, CAPTURE_HEAD - ADDRESSES,
					      scratch->room + ADDRESSES + (strip & TAGS_MASK));
			held = held > strip ? held - strip : 0;
		}
		result = capture_filter(&scratch->head, held < CAPTURE_HEAD ? held : CAPTURE_HEAD, length - strip);
		if (result == FILTER_NO)
			return NULL;
	}
	__sync_fetch_and_add(&counts->matched, 1);
	clear(record, kind, identifier(hook, ++scratch->packets));
	record->ifindex = target->shown;
	record->length = length;
	record->prefix = prefix;
	record->skip = skip;
	record->strip = strip;
	record->inode = inode_of(sk);
	if (result == FILTER_UNDECIDED) {
		record->flags = CAPTURE_UNDECIDED;
		payload = CAPTURE_MAX - CAPTURE_PREFIX;
	}
	payload += skip + strip;
	if (payload > CAPTURE_MAX)
		payload = CAPTURE_MAX;
	if (payload > skb->len)
		payload = skb->len;
	record->payload = payload;
	return counts;
}

static __always_inline void output_skb(const struct sk_buff *skb, struct scratch *scratch, struct capture_counts *counts)
{
	__u64 prefix = scratch->record.prefix;

	if (prefix > CAPTURE_PREFIX)
		return;
	if (bpf_skb_output((void *)skb, &events_map, OUTPUT(scratch->record.payload), scratch,
			   sizeof(scratch->record) + prefix))
		__sync_fetch_and_add(&counts->lost, 1);
}

/*
 * What the descriptor's TX metadata asked for, as the packet has it (net/xdp/xsk.c, xsk_build_skb): the checksum's place, even if
 * XDP_UMEM_TX_SW_CSUM had the kernel compute it, the launch time, and where the time of sending is to be written.
 */
static __always_inline void note_asked(struct capture_record *record, struct sk_buff *skb)
{
	__u16 start = BPF_CORE_READ(skb, csum_start);
	unsigned char *head = BPF_CORE_READ(skb, head);
	struct skb_shared_info *shared;

	/* From the head on; there is room for the device's header before it. */
	if (start) {
		record->asked |= CAPTURE_TX_CHECKSUM;
		start -= BPF_CORE_READ(skb, data) - head;
		record->result = (__u32)start << 16 | BPF_CORE_READ(skb, csum_offset);
	}
	record->launch = BPF_CORE_READ(skb, skb_mstamp_ns);
	if (record->launch)
		record->asked |= CAPTURE_TX_LAUNCH;
	if (bpf_core_field_exists(struct skb_shared_info, xsk_meta)) {
		shared = (void *)(head + BPF_CORE_READ(skb, end));
		if (BPF_CORE_READ(shared, xsk_meta.tx_timestamp))
			record->asked |= CAPTURE_TX_TIMESTAMP;
	}
}

SEC("fentry/__dev_direct_xmit")
int BPF_PROG(capture_direct, struct sk_buff *skb, __u16 queue)
{
	struct scratch *scratch = scratch_of(HOOK_DIRECT);
	struct current *current = current_of(1);
	struct net_device *dev = skb->dev;
	struct capture_target *target;
	struct capture_counts *counts;
	struct sock *sk = skb->sk;
	enum capture_kind kind;
	__u32 ifindex;

	if (!scratch || !current)
		return 0;
	current->matched = 0;
	target = target_of(dev, &ifindex);
	if (!target)
		return 0;
	/* Else it is a packet socket with PACKET_QDISC_BYPASS. */
	kind = sk->__sk_common.skc_family == AF_XDP ? CAPTURE_XSK_COPY : CAPTURE_KERNEL_TRANSMIT;
	counts = describe(scratch, skb, dev->type, HOOK_DIRECT, kind, ifindex, target);
	if (!counts)
		return 0;
	scratch->record.queue = queue;
	if (kind == CAPTURE_XSK_COPY)
		note_asked(&scratch->record, skb);
	else
		scratch->record.flags |= CAPTURE_DIRECT;
	scratch->record.pid = process();
	bpf_get_current_comm(scratch->record.comm, sizeof(scratch->record.comm));
	current->packet = (__u64)skb;
	current->id = scratch->record.id;
	current->shown = scratch->record.ifindex;
	current->matched = 1;
	output_skb(skb, scratch, counts);
	return 0;
}

/* The packet may be gone: it is only named here. */
SEC("fexit/__dev_direct_xmit")
int BPF_PROG(capture_direct_exit, struct sk_buff *skb, __u16 queue, int result)
{
	struct scratch *scratch = scratch_of(HOOK_DIRECT_EXIT);
	struct current *current = current_of(1);

	if (!result || !scratch || !current || !current->matched || current->packet != (__u64)skb)
		return 0;
	current->matched = 0;
	clear(&scratch->record, CAPTURE_SENT, current->id);
	scratch->record.ifindex = current->shown;
	scratch->record.result = result;
	bpf_perf_event_output(ctx, &events_map, BPF_F_CURRENT_CPU, &scratch->record, sizeof(scratch->record));
	return 0;
}

/* Whether received packets of the device are captured at its XDP program. */
static __always_inline bool is_traced(const struct net_device *dev, __u32 flags)
{
	int mode;

	if (flags & CAPTURE_XDP_ABOVE)
		return true;
#pragma unroll
	for (mode = 0; mode < XDP_MODES; mode++) {
		const struct bpf_xdp_link *link = dev->xdp_state[mode].link;
		const struct bpf_prog *program = link ? link->link.prog : dev->xdp_state[mode].prog;
		__u64 *since;
		__u32 id;

		if (!program)
			continue;
		id = program->aux->id;
		since = bpf_map_lookup_elem(&traced_map, &id);
		if (since && bpf_ktime_get_ns() >= *since)
			return true;
	}
	return false;
}

/* Whether the packet was captured at an XDP program, though it may be another program's turn by now. */
static __always_inline bool was_passed(const struct sk_buff *skb)
{
	__u64 head = (__u64)skb->head;
	__u64 *place = place_of(head);

	if (!place || *place != head)
		return false;
	*place = 0;
	return true;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(capture_receive, struct sk_buff *skb)
{
	struct scratch *scratch = scratch_of(HOOK_RECEIVE);
	struct net_device *dev = skb->dev;
	struct capture_target *target;
	struct capture_counts *counts;
	__u32 ifindex, queue;

	target = target_of(dev, &ifindex);
	if (!target || was_passed(skb) || is_traced(dev, target->flags) || !scratch)
		return 0;
	/* skb_get_rx_queue: 0 for none. */
	queue = (__u32)skb->queue_mapping - !(target->flags & CAPTURE_SENT_QUEUE);
	counts = describe(scratch, skb, dev->type, HOOK_RECEIVE, CAPTURE_KERNEL_RECEIVE, ifindex, target);
	if (!counts)
		return 0;
	scratch->record.queue = queue;
	/* Whoever sent it, on a device that loops it back: not who receives it. */
	scratch->record.inode = 0;
	output_skb(skb, scratch, counts);
	return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(capture_transmit, const struct sk_buff *skb, const struct net_device *dev)
{
	struct scratch *scratch = scratch_of(HOOK_TRANSMIT);
	struct capture_target *target;
	struct capture_counts *counts;
	__u32 ifindex;

	target = target_of(dev, &ifindex);
	if (!target || !scratch)
		return 0;
	counts = describe(scratch, skb, dev->type, HOOK_TRANSMIT, CAPTURE_KERNEL_TRANSMIT, ifindex, target);
	if (!counts)
		return 0;
	scratch->record.queue = skb->queue_mapping;
	output_skb(skb, scratch, counts);
	return 0;
}

/* A packet that the kernel drops. `receiver` is the socket that it was for, where the kernel says so (Linux 6.11). */
static __always_inline int dropped(struct sk_buff *skb, int reason, struct sock *receiver)
{
	struct scratch *scratch = scratch_of(HOOK_DROP);
	enum capture_kind kind = CAPTURE_KERNEL_TRANSMIT;
	struct net_device *dev = skb->dev;
	struct current *current;
	struct capture_target *target;
	struct capture_counts *counts;
	__u16 type = ARPHRD_ETHER;
	__u32 ifindex;

	if (!scratch || !is_drop(reason))
		return 0;
	/*
	 * In a socket's queue `dev` is a union with other things, and may be anything: what is read through it then fails
	 * or is no target's, and it is the receiver that tells the namespace.
	 */
	ifindex = skb->skb_iif;
	if (receiver && ifindex && receiver->__sk_common.skc_net.net->net_cookie == netns) {
		target = bpf_map_lookup_elem(&targets_map, &ifindex);
		kind = CAPTURE_KERNEL_RECEIVE;
	} else {
		target = drops_of(dev, &ifindex);
		type = dev->type;
		if (skb->skb_iif == (int)ifindex)
			kind = CAPTURE_KERNEL_RECEIVE;
	}
	if (!target)
		return 0;
	/* The program's verdict says it already; the driver or generic XDP now frees what it dropped. */
	current = current_of(0);
	if (current && current->head && current->head == (__u64)skb->head) {
		current->head = 0;
		return 0;
	}
	counts = describe(scratch, skb, type, HOOK_DROP, kind, ifindex, target);
	if (!counts)
		return 0;
	if (receiver && kind == CAPTURE_KERNEL_RECEIVE)
		scratch->record.inode = inode_of(receiver);
	scratch->record.flags |= CAPTURE_DROPPED;
	scratch->record.result = reason;
	output_skb(skb, scratch, counts);
	return 0;
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(capture_drop, struct sk_buff *skb, void *location, int reason, struct sock *receiver)
{
	return dropped(skb, reason, receiver);
}

/* Before Linux 6.11. */
SEC("tp_btf/kfree_skb")
int BPF_PROG(capture_drop_older, struct sk_buff *skb, void *location, int reason)
{
	return dropped(skb, reason, NULL);
}

#include "capture_forward.h"

/* What the filter says of a packet of BPF_PROG_TEST_RUN. */
SEC("?xdp")
int capture_try(struct xdp_md *ctx)
{
	struct scratch *scratch = scratch_of(HOOK_XDP);
	__u32 length = bpf_xdp_get_buff_len(ctx);
	__u64 held = length;

	if (held > needed)
		held = needed;
	asm volatile("" : "+r"(held));
	if (!scratch || held > CAPTURE_HEAD)
		return ~0;
	if (held && bpf_xdp_load_bytes(ctx, 0, &scratch->head, held))
		return ~0;
	return capture_filter(&scratch->head, held, length);
}

char _license[] SEC("license") = "Dual BSD/GPL";
