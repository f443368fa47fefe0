//! The filter's program on single packets, by BPF_PROG_TEST_RUN. Needs root.

mod cost;
mod headers;
mod learning;
mod limits;
mod lists;
mod quic;
mod rules;
mod samples;
mod syn;
