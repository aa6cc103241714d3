//! murmura-sim
