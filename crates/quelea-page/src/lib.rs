//! A run as people see it: live, finished or simulated, on one page, in a terminal, for Prometheus,
//! TensorBoard and as one HTML file. Everything here is made of the records that also go to
//! `records.jsonl`.
//!
//! ```
//! use quelea_page::description::RunDescription;
//! use quelea_page::log::RunLog;
//! use quelea_page::metrics;
//! use quelea_record::{Record, RecordKind};
//! use serde_json::json;
//!
//! let config = json!({ "workers": 2, "steps": 10, "algorithm": { "name": "allreduce" } });
//! let log = RunLog::recorded(RunDescription::of_config(config, "first"), 1);
//! let event = RecordKind::Evaluation { loss: 0.25, accuracy: Some(0.9), consensus: 0.0 };
//! log.take(&Record { t: 1.5, rank: 0, step: 10, event });
//! assert_eq!(log.state_json(None)["progress"]["loss"], 0.25);
//! assert!(metrics::text(&log).contains("0.25"));
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`description`] | what is known of a run before it begins |
//! | [`activity`] | what one rank does, from its records |
//! | [`state`] | the whole run at one moment, from its records |
//! | [`waits`] | who waits for whom, and the longest chain as a sentence |
//! | [`curves`] | loss, accuracy and distance over a whole run, in a few hundred points |
//! | [`advice`] | what was predicted, what is measured, what would be faster |
//! | [`log`] | the records of one run, its state now and at any earlier moment |
//! | [`folder`] | runs on the disk: opening, listing, following one that is being written |
//! | [`forecaster`] | asks `plan` about a run, live or recorded |
//! | [`listener`] | where a page is reached, and which other pages may show it |
//! | [`server`] | the HTTP server: the page, its API, `/metrics` |
//! | [`health`] | whether a process lives and its run has begun, for the probes of a cluster |
//! | [`kubeflow`] | progress in the status of a TrainJob |
//! | [`access`] | who may see it: loopback, or a token |
//! | [`metrics`] | the state in Prometheus's text format |
//! | [`tensorboard`] | event files for TensorBoard |
//! | [`report`] | a run as one HTML file |
//! | [`client`] | a client of the API, for terminals |

pub mod access;
pub mod activity;
pub mod advice;
pub mod client;
pub mod curves;
pub mod description;
pub mod folder;
pub mod forecaster;
pub mod health;
pub mod kubeflow;
pub mod listener;
pub mod log;
pub mod metrics;
pub mod report;
pub mod server;
pub mod state;
pub mod tensorboard;
#[doc(hidden)]
pub mod untrusted;
pub mod waits;

mod assets;
mod record_stream;
mod server_thread;
mod state_json;
mod visitors;
