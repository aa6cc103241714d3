//! An algorithm of your own: gossip in which workers average with their neighbours every other step.
//!
//! ```text
//! upon g[b]:                            x_i[b] ← x_i[b] − η·Opt(g[b])
//!     at odd steps:                     send x_i[b]
//! upon x_j[b] of this step, if odd:     x_i[b] ← Σ_j W_ij x_j[b]
//! ```

use quelea::algorithms::{Codecs, Entry, Gathers, Traffic, When};
use quelea::contract::{Context, Mode};
use quelea::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use quelea::message::Message;
use quelea::meta::Meta;
use quelea::state::Visitor;
use quelea::{Cluster, Error, Registry, Run};

static EVERY_OTHER: Entry = Entry {
    meta: Meta {
        name: "every-other",
        summary: "averages with the neighbours of the topology at every other step",
        paper: "",
        section: "",
        file: file!(),
        options: &[],
    },
    sends: "the model to every neighbour, once per two steps",
    lost_peer: "its weight goes to the receivers at once",
    resized: "every worker begins with the mean of the models and of the optimizers",
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MODELS,
    properties: |_| exchange::PROPERTIES,
    traffic: |_| Traffic::Gossip {
        vectors: 1,
        when: When::AfterGradient,
        every: 2,
        average: None,
        gathers: Gathers::Means,
    },
    worker: |_| SyncGossip::boxed(EveryOther),
    server: None,
};

struct EveryOther;

impl GossipMethod for EveryOther {
    const AWAITED: &'static str = "its model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        exchange.enter(cx, cx.step);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            exchange.begin(cx, cx.step);
        }
        cx.optimize(b, Mode::Apply);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if cx.step.is_multiple_of(2) {
            return exchange.finish();
        }
        let message = Message::new(exchange::KIND, cx.step, b).with(cx.params_payload(b));
        exchange.post(&mut cx.outbox, message);
        exchange.wait(b);
    }

    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    ) {
        gathered.mix(&mut cx.outbox, 0, &mut cx.params[cx.layout.range(b)]);
        exchange.finish();
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

fn main() -> Result<(), Error> {
    let run = |algorithm: &str| {
        Run::new(vec![0.0; 50])
            .registry(Registry::builtin().with(&EVERY_OTHER))
            .workers(6)
            .steps(100)
            .algorithm(algorithm)
            .learning_rate(0.1)
            .gradient(|batch, params, grad| {
                grad.iter_mut().zip(params).for_each(|(g, x)| *g = x - batch.worker as f32);
                grad.iter().map(|g| 0.5 * g * g).sum()
            })
    };
    let outcome = run("every-other").simulate(&Cluster::default())?;
    let often = run("d-psgd").simulate(&Cluster::default())?;
    let (half, whole) = (outcome.ranks()[0].bytes_sent, often.ranks()[0].bytes_sent);
    println!("mean parameter {:.3}; {half} bytes sent instead of {whole}", outcome.model()[0]);
    assert_eq!(2 * half, whole);
    assert!((outcome.model()[0] - 2.5).abs() < 1e-3, "the optimum of the mean is 2.5");
    // The same bits in threads.
    assert_eq!(outcome.model(), run("every-other").threads()?.model());
    Ok(())
}
