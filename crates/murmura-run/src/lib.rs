//! murmura-run
