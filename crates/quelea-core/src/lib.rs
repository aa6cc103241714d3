//! The algorithms of distributed training, as state machines that react to events.
//!
//! Nothing here opens a socket, reads a clock, starts a thread (except inside the parallel
//! vector kernels), touches a file or an environment variable. A driver (the virtual cluster,
//! threads, TCP, a PyTorch loop) moves messages and time; see [`node::Node`].
//!
//! What a driver needs to know of an algorithm it asks its entry for:
//!
//! ```
//! use quelea_core::algorithms;
//! use quelea_core::options::Options;
//!
//! let entry = algorithms::find("d-psgd").expect("built in");
//! let properties = (entry.properties)(&Options::defaults(entry.meta.options));
//! assert!(properties.synchronous && !properties.servers);
//! assert_eq!(algorithms::find("d-pgsd").unwrap_err(), Some("d-psgd"));
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`contract`] | [`contract::Algorithm`], the events it gets, the effects it asks for |
//! | [`properties`] | what drivers ask of an algorithm instead of knowing its name |
//! | [`run_spec`] | what the nodes of a run have in common |
//! | [`node`] | one rank as any driver holds it: algorithm, parameters, optimizer, view |
//! | [`message`], [`payload`] | what travels, and the pooled memory it travels in |
//! | [`view`] | numbered membership; who mixes with whom at which step |
//! | [`layout`] | how the flat vector is cut into buckets and shards |
//! | [`vector`] | the only hot loops |
//! | [`robust`] | aggregation that some bad vectors do not spoil |
//! | [`codec`] | the table of codecs: vectors as fewer bytes, and error feedback |
//! | [`random`], [`time`] | seeded named streams; nanoseconds since the run began |
//! | [`meta`], [`options`] | what entries of every table have in common |
//! | [`registry`] | every entry that a run may name: the tables, and what other crates add |
//! | [`kit`] | building blocks that algorithms share |
//! | [`algorithms`], [`collectives`], [`topology`], [`optim`], [`problems`] | the tables |

#![warn(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod algorithms;
pub mod codec;
pub mod collectives;
pub mod contract;
pub mod kit;
pub mod layout;
pub mod message;
pub mod meta;
pub mod names;
pub mod node;
pub mod optim;
pub mod options;
pub mod payload;
pub mod poison;
pub mod problems;
pub mod properties;
pub mod random;
pub mod registry;
pub mod robust;
pub mod run_spec;
pub mod state;
pub mod time;
pub mod topology;
pub mod vector;
pub mod view;
