//! Points the calls that instrumentation makes at our counter; libFuzzer has a function of the same name.

fn main() {
    println!("cargo:rustc-link-arg=-Wl,--wrap=__sanitizer_cov_trace_pc");
}
