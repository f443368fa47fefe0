//! One suite for every backend of packet I/O.
//!
//! The checks are functions over a [`bed::Bed`]; the macro below runs each on each backend. The simulated
//! network needs nothing. The others run over a veth between two namespaces and need root
//! (CAP_NET_ADMIN); without it they say so and pass, unless `EXPRESSWAY_REQUIRE_ROOT_TESTS=1`. Those on
//! devices are ignored unless asked for.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

#[path = "../common/mod.rs"]
mod common;

mod adversity;
mod bed;
mod linked;
mod peer;
mod simulated;
mod traffic;

/// A module of tests: every check on the bed that `$make` makes.
macro_rules! suite {
    ($(#[$attribute:meta])* $name:ident, $privileged:expr, $make:expr) => {
        suite!(@checks [$(#[$attribute])*] $name, $privileged, $make;
            traffic: receives_each_datagram_once, sends_every_size,
                sends_runs_of_equal_size_and_a_shorter_last, sends_mixed_sizes_in_one_burst,
                interleaves_flows_in_one_flush, keeps_the_order_of_a_flow,
                replies_from_the_address_that_was_asked, carries_ecn_both_ways, sends_more_than_it_has_buffers_for,
                receives_empty_datagrams, counts_what_it_moves, sends_datagrams_larger_than_a_frame,
                takes_the_way_that_it_is_for, becomes_readable_and_never_blocks;
            adversity: survives_garbage, sends_the_first_burst_to_an_unknown_neighbour,
                serves_again_after_the_link_was_down, counts_what_cannot_be_sent, receives_the_largest;
        );
    };
    (@checks $attributes:tt $name:ident, $privileged:expr, $make:expr; $($group:ident: $($check:ident),*;)*) => {
        mod $name {
            #[allow(unused_imports)] // Each suite needs some of them.
            use expressway_netio::{Wait, xsk::{ObtainedMode, TransmitVia}, udp::SendMode};

            $($(suite!(@check $attributes $privileged, $make, $group, $check);)*)*
        }
    };
    (@check [$(#[$attribute:meta])*] $privileged:expr, $make:expr, $group:ident, $check:ident) => {
        #[test]
        $(#[$attribute])*
        fn $check() {
            if !$privileged || crate::common::netns::is_privileged() {
                let mut bed = $make;
                crate::$group::$check(&mut bed);
            }
        }
    };
}

suite!(simulated_1500, false, crate::simulated::Simulated::new(1500));
suite!(simulated_9000, false, crate::simulated::Simulated::new(9000));
suite!(kernel_gso, true, crate::linked::kernel(1500, SendMode::Gso, true));
suite!(kernel_sendmmsg, true, crate::linked::kernel(1500, SendMode::Sendmmsg, false));
suite!(kernel_sendmsg, true, crate::linked::kernel(1500, SendMode::Sendmsg, true));
suite!(kernel_9000, true, crate::linked::kernel(9000, SendMode::Gso, true));
suite!(xsk_copy, true, crate::linked::xsk(1500, 1, TransmitVia::Xsk, true));
suite!(xsk_two_queues, true, crate::linked::xsk(1500, 2, TransmitVia::Xsk, false));
suite!(xsk_9000, true, crate::linked::xsk(9000, 1, TransmitVia::Xsk, false));
suite!(
    xsk_busy_poll,
    true,
    crate::linked::waiting(
        crate::linked::xsk(1500, 1, TransmitVia::Xsk, true),
        Wait::BusyPoll(Default::default())
    )
);
suite!(
    xsk_spin,
    true,
    crate::linked::waiting(
        crate::linked::xsk(1500, 1, TransmitVia::Xsk, true),
        Wait::Spin(Default::default())
    )
);
suite!(
    kernel_busy_poll,
    true,
    crate::linked::waiting(
        crate::linked::kernel(1500, SendMode::Gso, true),
        Wait::BusyPoll(Default::default())
    )
);
suite!(
    kernel_spin,
    true,
    crate::linked::waiting(crate::linked::kernel(1500, SendMode::Gso, true), Wait::Spin(Default::default()))
);
suite!(hybrid, true, crate::linked::xsk(1500, 1, TransmitVia::Kernel, true));
suite!(hybrid_9000, true, crate::linked::xsk(9000, 2, TransmitVia::Kernel, false));

// On the machine's own devices, which it takes a machine for that has some to spare: tests/guest makes one.
suite!(
    #[ignore = "needs two wired devices with zero-copy in EXPRESSWAY_TEST_DEVICES: scripts/test guest"]
    device_zero_copy,
    true,
    crate::linked::device(ObtainedMode::ZeroCopy, TransmitVia::Xsk)
);
suite!(
    #[ignore = "needs two wired devices with zero-copy in EXPRESSWAY_TEST_DEVICES: scripts/test guest"]
    device_hybrid,
    true,
    crate::linked::device(ObtainedMode::ZeroCopy, TransmitVia::Kernel)
);
suite!(
    #[ignore = "needs two wired devices in EXPRESSWAY_TEST_DEVICES: scripts/test guest"]
    device_copy,
    true,
    crate::linked::device(ObtainedMode::Copy, TransmitVia::Xsk)
);
suite!(
    #[ignore = "needs two wired devices with zero-copy in EXPRESSWAY_TEST_DEVICES: scripts/test guest"]
    device_busy_poll,
    true,
    crate::linked::waiting(
        crate::linked::device(ObtainedMode::ZeroCopy, TransmitVia::Xsk),
        Wait::BusyPoll(Default::default())
    )
);
