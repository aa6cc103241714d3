//! The `murmura` command.
fn main() {}
