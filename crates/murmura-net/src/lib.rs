//! murmura-net
