//! Building blocks that algorithms share, for the built-in ones and for those of other crates.
//!
//! | module | what is in it |
//! |---|---|
//! | [`exchange`] | synchronous gossip: post to the neighbours, gather theirs, mix; [`exchange::SyncGossip`] turns a method with one exchange per step into an [`Algorithm`](crate::contract::Algorithm) |
//! | [`periodic`] | rounds of local steps that end with an exact average and an outer rule |
//! | [`push_sum`] | averages on directed graphs, with weights |
//! | [`servers`] | buckets and error feedback of algorithms with servers |
//! | [`collectives::average`](crate::collectives::average) | an exact average of all workers, restarted when one is lost |
//! | [`robust`](crate::robust) | aggregation that some bad vectors do not spoil |
//! | [`vector`](crate::vector) | kernels over `f32` slices with the same bits on every machine |
//!
//! A whole method in the form of adapt-then-combine (the optimizer's step, then the weighted mean
//! over the neighbours), which is what `d-psgd` with `form = "adapt-then-combine"` does:
//!
//! ```
//! use quelea_core::contract::{Context, Mode};
//! use quelea_core::kit::exchange::{Exchange, Gathered, GossipMethod, KIND, SyncGossip};
//! use quelea_core::message::Message;
//! use quelea_core::state::Visitor;
//!
//! struct AdaptThenCombine;
//!
//! impl GossipMethod for AdaptThenCombine {
//!     const AWAITED: &'static str = "its model";
//!
//!     fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
//!         exchange.enter(cx, cx.step);
//!     }
//!
//!     fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
//!         if b == 0 {
//!             exchange.begin(cx, cx.step);
//!         }
//!         cx.optimize(b, Mode::Apply);
//!     }
//!
//!     fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
//!         let message = Message::new(KIND, cx.step, b).with(cx.params_payload(b));
//!         exchange.post(&mut cx.outbox, message);
//!         exchange.wait(b);
//!     }
//!
//!     fn on_gathered(
//!         &mut self,
//!         cx: &mut Context<'_>,
//!         exchange: &mut Exchange,
//!         b: usize,
//!         gathered: Gathered,
//!     ) {
//!         gathered.mix(&mut cx.outbox, 0, &mut cx.params[cx.layout.range(b)]);
//!         exchange.finish();
//!     }
//!
//!     fn state(&mut self, _visitor: &mut dyn Visitor) {}
//! }
//!
//! let worker = SyncGossip::boxed(AdaptThenCombine);
//! ```

pub mod exchange;
pub mod periodic;
pub mod push_sum;
pub mod servers;
