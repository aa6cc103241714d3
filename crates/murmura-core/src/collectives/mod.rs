//! Collectives as state machines.
