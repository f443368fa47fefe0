//! The counters of a backend.

super::counters! {
    /// Counters of one backend since it was made. Every field only grows.
    ///
    /// `dropped_*` fields name the reason; nothing is dropped without one of them growing.
    pub struct IoStats {
        /// Datagrams handed to the service, by AF_XDP.
        pub rx_xsk_packets: u64,
        /// Payload bytes handed to the service, by AF_XDP.
        pub rx_xsk_bytes: u64,
        /// Datagrams handed to the service, by kernel sockets.
        pub rx_kernel_packets: u64,
        /// Payload bytes handed to the service, by kernel sockets.
        pub rx_kernel_bytes: u64,
        /// Datagrams sent by AF_XDP.
        pub tx_xsk_packets: u64,
        /// Payload bytes sent by AF_XDP.
        pub tx_xsk_bytes: u64,
        /// Datagrams sent by kernel sockets.
        pub tx_kernel_packets: u64,
        /// Payload bytes sent by kernel sockets.
        pub tx_kernel_bytes: u64,
        /// System calls made to send (AF_XDP kicks included).
        pub tx_syscalls: u64,
        /// System calls made to receive.
        pub rx_syscalls: u64,
        /// Frames received by AF_XDP that did not parse as a UDP datagram, or whose source address no packet on
        /// a wire may have: loopback, a group, the destination itself.
        pub dropped_malformed: u64,
        /// Datagrams received with a bad UDP checksum.
        pub dropped_checksum: u64,
        /// AF_XDP descriptors from the kernel that pointed outside the UMEM or overran a frame.
        pub dropped_bad_descriptor: u64,
        /// Datagrams larger than the receive buffer.
        pub dropped_truncated: u64,
        /// Datagrams that the kernel dropped at a UDP socket: its receive buffer was full, or the checksum wrong.
        pub rx_kernel_dropped: u64,
        /// Datagrams that the kernel refused to send (EPERM, EMSGSIZE, ENOBUFS and the like).
        pub dropped_send_refused: u64,
        /// Datagrams not sent because no transmit buffer came free.
        pub dropped_no_buffer: u64,
        /// XDP_STATISTICS `rx_dropped`: packets dropped by the kernel for other reasons.
        pub xdp_rx_dropped: u64,
        /// XDP_STATISTICS `rx_invalid_descs`.
        pub xdp_rx_invalid_descs: u64,
        /// XDP_STATISTICS `tx_invalid_descs`.
        pub xdp_tx_invalid_descs: u64,
        /// XDP_STATISTICS `rx_ring_full`.
        pub xdp_rx_ring_full: u64,
        /// XDP_STATISTICS `rx_fill_ring_empty_descs`.
        pub xdp_fill_ring_empty: u64,
        /// XDP_STATISTICS `tx_ring_empty_descs`.
        pub xdp_tx_ring_empty: u64,
        /// Datagrams that took the kernel socket because the AF_XDP path had no usable neighbour.
        pub tx_fallback_neighbour: u64,
        /// Datagrams that took the kernel socket because the route leaves by another interface.
        pub tx_fallback_route: u64,
        /// Datagrams that took the kernel socket because the AF_XDP socket could not send.
        pub tx_fallback_socket: u64,
    }
}
