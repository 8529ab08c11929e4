//! The unglue command line.

fn main() {}
