// long: one struct for each of many algorithms.
//! Algorithms as structs: the compiler checks the names of options and the words that they may be.
//!
//! There is one struct per built-in algorithm, with a field per option. [`Default`] takes the values of
//! the algorithm's entry, so that only what differs needs to be written:
//!
//! ```
//! # #[cfg(feature = "sim")]
//! # fn main() -> Result<(), quelea::Error> {
//! use quelea::typed::{Aladdin, AladdinPayload, DPsgd, DPsgdForm};
//! use quelea::{Cluster, Run};
//!
//! let run = Run::new([0.0]).workers(4).steps(100).learning_rate(0.1).gradient(|batch, x, grad| {
//!     grad[0] = x[0] - batch.worker as f32;
//!     0.5 * grad[0] * grad[0]
//! });
//! let form = DPsgdForm::AdaptThenCombine;
//! let gossip = run.clone().algorithm(DPsgd { form, ..DPsgd::default() });
//! let same = quelea::Choice::from("d-psgd").with("form", "adapt-then-combine");
//! assert_eq!(
//!     gossip.simulate(&Cluster::default())?.model(),
//!     run.clone().algorithm(same).simulate(&Cluster::default())?.model(),
//! );
//! let servers = Aladdin { alpha: 0.8, payload: AladdinPayload::Delta, ..Aladdin::default() };
//! run.algorithm(servers).simulate(&Cluster::default())?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "sim"))]
//! # fn main() {}
//! ```
//!
//! Limits of numbers, and what goes with what, are checked when the run starts, as for names.

#[macro_use]
mod option;

use quelea_core::algorithms::Entry;
use quelea_core::options::{Options, Value};

use crate::choice::Choice;
use option::{TypedOption, entry};

// <!-- Made from the table by `cargo xtask docs`; do not edit. -->
words! {
    /// The option `averaging` of [`AdPsgd`].
    AdPsgdAveraging {
        EveryGradient = "every-gradient",
        Active = "active",
    }

    /// The option `normaliser` of [`Aladdin`].
    AladdinNormaliser {
        Workers = "workers",
        Count = "count",
        None = "none",
    }

    /// The option `order` of [`Aladdin`].
    AladdinOrder {
        StepThenMix = "step-then-mix",
        MixThenStep = "mix-then-step",
    }

    /// The option `payload` of [`Aladdin`].
    AladdinPayload {
        Delta = "delta",
        Gradient = "gradient",
    }

    /// The option `scale` of [`Asp`].
    AspScale {
        Workers = "workers",
        Staleness = "staleness",
        None = "none",
    }

    /// The option `base` of [`Bmuf`], [`Diloco`], [`Slowmo`].
    Base {
        Local = "local",
        Sgp = "sgp",
    }

    /// The option `form` of [`Bmuf`].
    BmufForm {
        Classic = "classic",
        Nesterov = "nesterov",
    }

    /// The option `buffers` of [`Bmuf`], [`Diloco`], [`GossipAga`], [`GossipPga`], [`LocalSgd`], [`Slowmo`].
    Buffers {
        Keep = "keep",
        Reset = "reset",
        Average = "average",
    }

    /// The option `form` of [`Choco`].
    ChocoForm {
        Overlap = "overlap",
        AfterStep = "after-step",
    }

    /// The option `collective` of [`Allreduce`], [`Bmuf`], [`Diloco`], [`GossipAga`], [`GossipPga`], [`LocalSgd`], [`Slowmo`].
    Collective {
        Ring = "ring",
        HalvingDoubling = "halving-doubling",
        Hierarchical = "hierarchical",
        Auto = "auto",
    }

    /// The option `form` of [`DPsgd`].
    DPsgdForm {
        Consensus = "consensus",
        AdaptThenCombine = "adapt-then-combine",
        CombineThenAdapt = "combine-then-adapt",
    }

    /// The option `form` of [`Eamsgd`].
    EamsgdForm {
        Asynchronous = "asynchronous",
        Synchronous = "synchronous",
    }

    /// The option `form` of [`Easgd`].
    EasgdForm {
        Asynchronous = "asynchronous",
        Synchronous = "synchronous",
    }

    /// The option `form` of [`GradientTracking`].
    GradientTrackingForm {
        Diging = "diging",
        SemiAtc = "semi-atc",
        Atc = "atc",
        Push = "push",
    }

    /// The option `sends` of [`Sgp`].
    SgpSends {
        EveryOverlap = "every-overlap",
        EveryStep = "every-step",
    }

    /// The option `aggregate` of [`SyncPs`].
    SyncPsAggregate {
        Mean = "mean",
        Median = "median",
        TrimmedMean = "trimmed-mean",
        Krum = "krum",
        MultiKrum = "multi-krum",
        GeometricMedian = "geometric-median",
        CenteredClipping = "centered-clipping",
        MajorityVote = "majority-vote",
    }

    /// The option `lazy` of [`SyncPs`].
    SyncPsLazy {
        Never = "never",
        Gradient = "gradient",
        Parameters = "parameters",
    }

    /// The option `pre_aggregate` of [`SyncPs`].
    SyncPsPreAggregate {
        None = "none",
        Nnm = "nnm",
        Bucketing = "bucketing",
    }
}

algorithms! {
    /// `ad-psgd`: after a gradient, average with one random neighbour; nobody waits.
    ///
    /// Paper: Lian et al. 2018, arXiv:1710.06952
    AdPsgd = "ad-psgd" {
        /// Who starts averages: every worker after its gradient, as in Algorithm 1, or only the active half, as in the published implementation (half as many). Default: `"every-gradient"`.
        averaging: AdPsgdAveraging,
        /// Exchanges that a worker starts per gradient, one after another. Default: `1`.
        averages: u64,
    }

    /// `aladdin`: workers update themselves and never wait; servers answer with the global model now and then.
    ///
    /// Paper: Ko, Choi, Jei, Lee, Kim 2021 (CIKM)
    Aladdin = "aladdin" {
        /// How far a worker moves to the global model when one comes. Default: `0.5`.
        alpha: f64,
        /// Gradients of a worker per model sent back to it (π). Default: `4`.
        period: u64,
        /// As printed, or mixing before the step, so that no share of the newest step is taken back; better where models come often (small `period`). Default: `"step-then-mix"`.
        order: AladdinOrder,
        /// Send displacements η·u, or plain gradients that the server scales. Default: `"delta"`.
        payload: AladdinPayload,
        /// The server divides by n, by the number of gradients, or not (ablations). Default: `"workers"`.
        normaliser: AladdinNormaliser,
        /// Also report mixing to the server, so that its model is the workers' mean exactly. Default: `false`.
        track_mean: bool,
        /// Synchronous form: everybody mixes every `period` steps with the same model. Default: `false`.
        barrier: bool,
        /// Lose the gradient that triggers an update, as published (ablation). Default: `false`.
        drop_trigger: bool,
        /// Workers take their own steps; without, and with `alpha` = 1, this is naive asymmetric training (ablation). Default: `true`.
        self_update: bool,
    }

    /// `allreduce`: synchronous SGD; every step averages all gradients exactly.
    ///
    /// Paper: Goyal et al. 2017, arXiv:1706.02677; ring: Patarasuk and Yuan 2009
    Allreduce = "allreduce" {
        /// How exact averages are summed. Default: `"ring"`.
        collective: Collective,
    }

    /// `asp`: asynchronous parameter server; nobody waits for other workers.
    ///
    /// Paper: Dean et al. 2012 (Downpour SGD)
    Asp = "asp" {
        /// S(τ), what a gradient of staleness τ is multiplied by: 1/n, 1/max(1,τ) (Zhang et al. 2016), or 1. Default: `"workers"`.
        scale: AspScale,
        /// Gradients that a server averages per update; workers/n is n-softsync. Default: `1`.
        collect: u64,
    }

    /// `bmuf`: Local SGD whose averages are filtered by block momentum.
    ///
    /// Paper: Chen and Huo 2016 (ICASSP)
    Bmuf = "bmuf" {
        /// Steps from one exact average to the next (H). Default: `16`.
        period: u64,
        /// Block momentum as it is, or looking ahead along it. Default: `"classic"`.
        form: BmufForm,
        /// Share of the last block's update that is kept (μ); −1 means 1 − 1/n. Default: `-1`.
        block_momentum: f64,
        /// Learning rate of the blocks (ζ). Default: `1`.
        block_lr: f64,
        /// What workers do between averages: steps of their own, or SGP, which pushes the model along the topology at every step (weights must be doubly stochastic; they are on exponential graphs). Default: `"local"`.
        base: Base,
        /// What an average does to the optimizer's own vectors (momentum, moments). Default: `"keep"`.
        buffers: Buffers,
        /// How exact averages are summed. Default: `"ring"`.
        collective: Collective,
    }

    /// `bridge`: gossip by a trimmed mean of every coordinate over the neighbours.
    ///
    /// Paper: Fang, Yang and Bajwa 2022, arXiv:1908.08098
    Bridge = "bridge" {
        /// How many neighbours of a worker may send anything; 0 is plain gossip. Default: `0`.
        byzantine: u64,
    }

    /// `choco`: gossip of compressed differences to public copies of the models.
    ///
    /// Paper: Koloskova, Stich, Jaggi 2019, arXiv:1902.00340; Koloskova et al. 2020, arXiv:1907.09356
    Choco = "choco" {
        /// Mix with the copies of the last step while the next ones travel, or wait for them. Default: `"overlap"`.
        form: ChocoForm,
        /// Γ: how far to move to the neighbours' copies; 0 stands for δ/(2 − δ), where the codec keeps about δ of a vector. Default: `0`.
        consensus: f64,
    }

    /// `clipped-gossip`: gossip in which differences to the neighbours are clipped to an adaptive length.
    ///
    /// Paper: He, Karimireddy and Jaggi 2022, arXiv:2202.01545
    ClippedGossip = "clipped-gossip" {
        /// How many neighbours of a worker may send anything; 0 is plain gossip. Default: `0`.
        byzantine: u64,
    }

    /// `cs-plus-rg`: gossip in which the largest differences are clipped to the next smaller one.
    ///
    /// Paper: Gaucher, Dieuleveut and Hendrikx 2025, arXiv:2410.10418
    CsPlusRg = "cs-plus-rg" {
        /// How many neighbours of a worker may send anything; 0 is plain gossip. Default: `0`.
        byzantine: u64,
    }

    /// `d-amsgrad`: decentralized AMSGrad with a tracked second moment; with the optimizer sgd.
    ///
    /// Paper: Chen, Karimi, Zhao and Li 2021, arXiv:2109.03194
    DAmsgrad = "d-amsgrad" {
        /// Share of the first moment that is kept at each step. Default: `0.9`.
        beta1: f64,
        /// Share of the second moment that is kept at each step. Default: `0.999`.
        beta2: f64,
        /// Smallest second moment, and the first. Default: `0.000001`.
        epsilon: f64,
    }

    /// `d-psgd`: every step averages the model with the neighbours of the topology.
    ///
    /// Paper: Lian et al. 2017, arXiv:1705.09056
    DPsgd = "d-psgd" {
        /// When neighbours are averaged relative to the gradient step. Default: `"consensus"`.
        form: DPsgdForm,
        /// Steps from one average with the neighbours to the next; the others are local. Default: `1`.
        period: u64,
    }

    /// `d2`: exact diffusion with the full weights: faster mixing, on fewer topologies.
    ///
    /// Paper: Tang et al. 2018, arXiv:1803.07068
    D2 = "d2" {
    }

    /// `decentlam`: d-psgd whose optimizer sees gradient and neighbours as one; for momentum 0.9 or so.
    ///
    /// Paper: Yuan et al. 2021, arXiv:2104.11981
    Decentlam = "decentlam" {
    }

    /// `diloco`: hundreds of local steps, then one Nesterov step on what they achieved together.
    ///
    /// Paper: Douillard et al. 2023, arXiv:2311.08105
    Diloco = "diloco" {
        /// Steps from one exact average to the next (H). Default: `500`.
        period: u64,
        /// Learning rate of the outer step. Default: `0.7`.
        outer_lr: f64,
        /// Share of the outer velocity that is kept per round (μ). Default: `0.9`.
        outer_momentum: f64,
        /// Look ahead along the outer velocity; false is heavy-ball momentum. Default: `true`.
        nesterov: bool,
        /// What workers do between averages: steps of their own, or SGP, which pushes the model along the topology at every step (weights must be doubly stochastic; they are on exponential graphs). Default: `"local"`.
        base: Base,
        /// What an average does to the optimizer's own vectors (momentum, moments). Default: `"keep"`.
        buffers: Buffers,
        /// How exact averages are summed. Default: `"ring"`.
        collective: Collective,
    }

    /// `eamsgd`: EASGD whose workers have Nesterov momentum.
    ///
    /// Paper: Zhang, Choromanska, LeCun 2015, arXiv:1412.6651
    Eamsgd = "eamsgd" {
        /// How far a worker moves to the centre per exchange (α); 0 means 0.9/n. Default: `0`.
        moving_rate: f64,
        /// Steps of a worker from one exchange to the next (τ). Default: `10`.
        period: u64,
        /// Every worker on its own, or all exchange together. Default: `"asynchronous"`.
        form: EamsgdForm,
        /// Asynchronous: ask for the centre before the gradient is computed, not after. Default: `true`.
        prefetch: bool,
        /// Share of the velocity that is kept at each step (δ). Default: `0.99`.
        momentum: f64,
    }

    /// `easgd`: independent workers, tied to a centre at the servers by an elastic force.
    ///
    /// Paper: Zhang, Choromanska, LeCun 2015, arXiv:1412.6651
    Easgd = "easgd" {
        /// How far a worker moves to the centre per exchange (α); 0 means 0.9/n. Default: `0`.
        moving_rate: f64,
        /// Steps of a worker from one exchange to the next (τ). Default: `10`.
        period: u64,
        /// Every worker on its own, or all exchange together. Default: `"asynchronous"`.
        form: EasgdForm,
        /// Asynchronous: ask for the centre before the gradient is computed, not after. Default: `true`.
        prefetch: bool,
    }

    /// `exact-diffusion`: adapt, correct, combine with half the weights: the exact optimum on unequal data.
    ///
    /// Paper: Yuan, Ying, Zhao and Sayed 2019, arXiv:1702.05122
    ExactDiffusion = "exact-diffusion" {
    }

    /// `extra`: d-psgd with a correction of its bias: the exact optimum on unequal data.
    ///
    /// Paper: Shi, Ling, Wu and Yin 2015, arXiv:1404.6264
    Extra = "extra" {
    }

    /// `gossip-aga`: gossip with exact averages over all workers, rarer as the loss falls.
    ///
    /// Paper: Chen et al. 2021, arXiv:2105.09080
    GossipAga = "gossip-aga" {
        /// Steps from one exact average to the next at the beginning (H_init). Default: `4`.
        period: u64,
        /// The most steps from one exact average to the next. Default: `64`.
        period_max: u64,
        /// Steps in which the initial loss is measured and the period stays. Default: `100`.
        warmup_steps: u64,
        /// What an average does to the optimizer's own vectors (momentum, moments). Default: `"keep"`.
        buffers: Buffers,
        /// How exact averages are summed. Default: `"ring"`.
        collective: Collective,
    }

    /// `gossip-pga`: gossip, and every `period` steps an exact average over all workers.
    ///
    /// Paper: Chen et al. 2021, arXiv:2105.09080
    GossipPga = "gossip-pga" {
        /// Steps from one exact average to the next (H). Default: `6`.
        period: u64,
        /// What an average does to the optimizer's own vectors (momentum, moments). Default: `"keep"`.
        buffers: Buffers,
        /// How exact averages are summed. Default: `"ring"`.
        collective: Collective,
    }

    /// `gradient-tracking`: tracks the mean gradient: the exact optimum on unequal data, over any topology.
    ///
    /// Paper: Nedić, Olshevsky and Shi 2017, arXiv:1607.03218 (DIGing, Push-DIGing); Xu et al. 2015 (atc)
    GradientTracking = "gradient-tracking" {
        /// What is mixed when; push takes directed and irregular graphs. Default: `"diging"`.
        form: GradientTrackingForm,
    }

    /// `local-sgd`: local steps; every `period` steps all models are averaged exactly.
    ///
    /// Paper: McMahan et al. 2017, arXiv:1602.05629; Stich 2019, arXiv:1805.09767; post-local: Lin et al. 2020, arXiv:1808.07217
    LocalSgd = "local-sgd" {
        /// Steps from one exact average to the next (H). Default: `8`.
        period: u64,
        /// Post-local: average at every step before this one. Default: `0`.
        start_step: u64,
        /// Post-local: average at every step until the learning rate first drops. Default: `false`.
        after_drop: bool,
        /// What an average does to the optimizer's own vectors (momentum, moments). Default: `"keep"`.
        buffers: Buffers,
        /// How exact averages are summed. Default: `"ring"`.
        collective: Collective,
    }

    /// `nna`: gossip that averages with the nearest neighbours only, without the farthest few.
    ///
    /// Paper: Farhadkhani et al. 2023, arXiv:2209.10931 (MoNNA)
    Nna = "nna" {
        /// How many neighbours of a worker may send anything; 0 is plain gossip. Default: `0`.
        byzantine: u64,
    }

    /// `qg-dmsgd`: d-psgd whose momentum follows the mixed model; needs an optimizer with momentum.
    ///
    /// Paper: Lin et al. 2021, arXiv:2102.04761
    QgDmsgd = "qg-dmsgd" {
        /// Share of the quasi-global momentum that is kept at each step. Default: `0.9`.
        mu: f64,
    }

    /// `sgp`: every step pushes shares of the model along directed edges; weights undo the bias.
    ///
    /// Paper: Assran et al. 2019, arXiv:1811.10792 (Algorithm 1; overlap: Algorithm 2)
    Sgp = "sgp" {
        /// Τ: take in the shares of τ steps ago; 1 hides the exchange behind the next gradient. Default: `0`.
        overlap: u64,
        /// Shares leave once per τ steps, as published, or at every step: τ times the traffic, and τ exchanges under way. Default: `"every-overlap"`.
        sends: SgpSends,
        /// Take in what has arrived and never wait; a lost message is then only late, and a run depends on timing. Default: `false`.
        free_running: bool,
        /// Free_running: shares are acknowledged, and folded into one until then; off: every share is a message by itself, as published, and a lost one is lost mass. Default: `true`.
        fold: bool,
        /// Ignore the push-sum weights; only to show what they are for. Default: `false`.
        biased: bool,
    }

    /// `slowmo`: Local SGD whose averages move with slow momentum, in units of the learning rate.
    ///
    /// Paper: Wang et al. 2020, arXiv:1910.00643
    Slowmo = "slowmo" {
        /// Steps from one exact average to the next (H). Default: `48`.
        period: u64,
        /// Share of the slow momentum that is kept per round (β); more for more workers. Default: `0.5`.
        slow_momentum: f64,
        /// Learning rate of the rounds, times that of the steps (α). Default: `1`.
        slow_lr: f64,
        /// What workers do between averages: steps of their own, or SGP, which pushes the model along the topology at every step (weights must be doubly stochastic; they are on exponential graphs). Default: `"local"`.
        base: Base,
        /// What an average does to the optimizer's own vectors (momentum, moments). Default: `"keep"`.
        buffers: Buffers,
        /// How exact averages are summed. Default: `"ring"`.
        collective: Collective,
    }

    /// `ssp`: parameter server whose fast workers may be `staleness` steps ahead of the slowest.
    ///
    /// Paper: Ho et al. 2013 (NIPS)
    Ssp = "ssp" {
        /// How many steps a worker may be ahead of the slowest one when it starts a gradient. Default: `3`.
        staleness: u64,
    }

    /// `sync-ps`: synchronous parameter server; every step waits for all gradients, or for all but a few.
    ///
    /// Paper: Li et al. 2014 (parameter server), with a barrier every step; backup workers: Chen et al. 2016, arXiv:1604.00981; robust rules: arXiv:1703.02757 (Krum), 1803.01498 (median, trimmed mean), 1912.13445 (geometric median), 2012.10333 (centered clipping), 2006.09365 (bucketing), 2302.01772 (NNM), 1810.05291 (majority vote); lazy uploads: 1805.09965 (LAG), 2002.11360 (LASG)
    SyncPs = "sync-ps" {
        /// A step waits for all but this many gradients, and for one at least; late ones are dropped. Default: `0`.
        backup: u64,
        /// How the gradients of a step become one; majority-vote gives 1 or -1 per element. Default: `"mean"`.
        aggregate: SyncPsAggregate,
        /// What comes before it: nearest-neighbour mixing, or means of random groups. Default: `"none"`.
        pre_aggregate: SyncPsPreAggregate,
        /// How many workers may send anything; at most what leaves the others a majority counts. Default: `0`.
        byzantine: u64,
        /// Longest difference that centered clipping leaves as it is. Default: `1`.
        clip_radius: f64,
        /// Steps of the geometric median and of centered clipping. Default: `8`.
        iterations: u64,
        /// When a worker lets the servers use its last gradient again: never, while its gradient has changed little (LAG-WK), or while the model has moved little (LASG-PS). Default: `"never"`.
        lazy: SyncPsLazy,
        /// Ξ: how large a change is too large, in mean squares of the last steps of the model over the learning rate; 0 sends every change. Default: `1`.
        lazy_threshold: f64,
        /// D: how many steps of the model are looked at. Default: `10`.
        lazy_window: u64,
        /// L of `lazy` = "parameters": how fast gradients change with the model at most. Default: `1`.
        lazy_smoothness: f64,
    }
}
// <!-- End of what is made from the table. -->

#[cfg(test)]
mod tests {
    use quelea_core::algorithms::ALGORITHMS;
    use quelea_core::options::{OptionKind, OptionSpec};

    use super::*;

    #[test]
    fn every_algorithm_of_the_table_has_a_struct() {
        let table: Vec<&str> = ALGORITHMS.iter().map(|entry| entry.meta.name).collect();
        let structs: Vec<&str> = STRUCTS.iter().map(|(name, _)| *name).collect();
        assert_eq!(structs, table);
    }

    /// Values of an option that a struct must be able to hold.
    fn values(option: &OptionSpec) -> Vec<Value> {
        match option.kind {
            OptionKind::Real { min, max, .. } => vec![Value::Number(min), Value::Number(max)],
            OptionKind::Whole { min, .. } => vec![Value::from(min), Value::from(min + 1)],
            OptionKind::Choice(words) => words.iter().map(|word| Value::from(*word)).collect(),
            OptionKind::Flag(_) => vec![Value::Flag(false), Value::Flag(true)],
            OptionKind::Text => vec![Value::from(""), Value::from("a")],
            OptionKind::Reals => vec![Value::Numbers(vec![]), Value::Numbers(vec![1.5])],
        }
    }

    #[test]
    fn a_struct_holds_every_option_of_its_entry_with_every_word() {
        for (entry, (name, to_choice)) in ALGORITHMS.iter().zip(STRUCTS) {
            let keys = entry.meta.options;
            let through = |options: &Options| {
                let given: Vec<(String, Value)> = to_choice(options).given().collect();
                let names: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
                let expected: Vec<&str> = keys.iter().map(|key| key.name).collect();
                assert_eq!(names, expected, "{name}");
                Options::check(keys, given).expect("values of the table")
            };
            let defaults = Options::defaults(keys);
            assert_eq!(through(&defaults), defaults, "{name}");
            for key in keys {
                for value in values(key) {
                    let options = defaults.clone().with(key.name, value);
                    assert_eq!(through(&options), options, "{name}, {}", key.name);
                }
            }
        }
    }
}
