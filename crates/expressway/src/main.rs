//! The `expressway` command.
fn main() {}
