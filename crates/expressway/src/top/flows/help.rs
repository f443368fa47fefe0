//! The keys.

/// Key and what it does.
pub(super) const KEYS: [(&str, &str); 20] = [
    ("q", "quit"),
    ("h ?", "this help"),
    ("Tab", "flows, queues, AF_XDP sockets, drops, CPUs, process"),
    ("v", "flows, hosts, ports, QUIC connections"),
    ("/ l", "filter: udp 443 192.0.2.0/24 !tcp; Esc removes it"),
    ("P Space", "freeze the screen"),
    ("o", "freeze the order"),
    ("1 2 3", "sort by rate over 2, 10, 40 seconds"),
    ("4 5", "sort by packets, by octets in all"),
    ("< >", "sort by local, by remote address"),
    ("s d", "local, remote addresses on or off"),
    ("S D", "local, remote ports on or off"),
    ("p", "all ports on or off"),
    ("n", "host names of /etc/hosts"),
    ("N", "port names of /etc/services"),
    ("t", "one line a row, or two: received and sent"),
    ("T", "octets in all"),
    ("b", "bars"),
    ("u", "bits or bytes"),
    ("j k ↓ ↑", "scroll; PgDn, PgUp, Home, End"),
];
