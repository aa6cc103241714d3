//! Learning-rate schedules: the table.
//!
//! Each schedule gives the share of the full learning rate at step t, counted from 0. All have a
//! linear warm-up of `warmup_steps` = w, in which step t has the factor (t + 1) / w. Which step t
//! is at an asynchronous worker is decided by the [clock](ScheduleClock).

use std::sync::Arc;

use super::{LearningRate, refused};
use crate::meta::Meta;
use crate::names;
use crate::options::{OptionError, OptionKind, OptionSpec, Options, Value};

/// The share of the full learning rate at a step.
pub type Factor = Box<dyn Fn(u64) -> f64 + Send + Sync>;

/// One entry of the table of schedules.
pub struct ScheduleEntry {
    /// Name, summary, paper and options.
    pub meta: Meta,
    /// Refuses options that are good one by one but not together.
    pub check: fn(&Options) -> Result<(), OptionError>,
    /// After the warm-up, for a run of this many steps.
    pub factor: fn(&Options, u64) -> Factor,
}

/// What every schedule takes.
pub const COMMON_KEYS: &[OptionSpec] = &[
    OptionSpec {
        name: "warmup_steps",
        kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 53 },
        help: "steps of the linear warm-up",
    },
    OptionSpec {
        name: "clock",
        kind: OptionKind::Choice(&["global", "own"]),
        help: "asynchronous algorithms: the step is the mean over all workers (global) or the \
               worker's own; the same elsewhere",
    },
];

/// Which step the learning rate of an asynchronous algorithm is a function of. In algorithms whose
/// workers all do the same number of rounds the two are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScheduleClock {
    /// Gradients done by all workers, divided by their number: a slow worker's rate falls with
    /// that of the others.
    #[default]
    Global,
    /// The worker's own step; at a server, that of the worker whose gradient it applies.
    Own,
}

/// All built-in schedules, by name.
pub const SCHEDULES: &[ScheduleEntry] = &[
    ScheduleEntry {
        meta: Meta {
            name: "constant",
            summary: "the same rate at every step",
            paper: "",
            section: "",
            file: file!(),
            options: &[],
        },
        check: |_| Ok(()),
        factor: |_, _| Box::new(|_| 1.0),
    },
    ScheduleEntry {
        meta: Meta {
            name: "cosine",
            summary: "half a cosine from the full rate after the warm-up down to a share of it",
            paper: "",
            section: "",
            file: file!(),
            options: &[
                OptionSpec {
                    name: "total_steps",
                    kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 53 },
                    help: "where the cosine ends; 0 means at the end of the run",
                },
                OptionSpec {
                    name: "final_fraction",
                    kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1.0 },
                    help: "the share of the rate that remains at the end",
                },
            ],
        },
        check: |_| Ok(()),
        factor: cosine,
    },
    ScheduleEntry {
        meta: Meta {
            name: "inverse-sqrt",
            summary: "falls with the square root of the step after the warm-up",
            paper: "",
            section: "",
            file: file!(),
            options: &[],
        },
        check: |_| Ok(()),
        factor: inverse_sqrt,
    },
    ScheduleEntry {
        meta: Meta {
            name: "step",
            summary: "multiplied by gamma from each milestone on",
            paper: "",
            section: "",
            file: file!(),
            options: &[
                OptionSpec {
                    name: "milestones",
                    kind: OptionKind::Reals,
                    help: "steps from which the rate is multiplied by gamma",
                },
                OptionSpec {
                    name: "gamma",
                    kind: OptionKind::Real { default: 0.1, min: 0.0, max: 1.0 },
                    help: "factor at each milestone",
                },
            ],
        },
        check: check_milestones,
        factor: stairs,
    },
];

/// The built-in entry of this name, or the nearest name if there is one.
pub fn find_schedule(name: &str) -> Result<&'static ScheduleEntry, Option<&'static str>> {
    names::find(SCHEDULES, |entry| entry.meta.name, name)
}

impl ScheduleEntry {
    /// The keys that all schedules have, and its own.
    pub fn all_keys(&self) -> Vec<OptionSpec> {
        [COMMON_KEYS, self.meta.options].concat()
    }

    /// Checks what was `given`, and fills in defaults.
    pub fn params(
        &self,
        given: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<Options, OptionError> {
        let params = Options::check(&self.all_keys(), given)?;
        (self.check)(&params)?;
        Ok(params)
    }

    /// The clock that was chosen.
    pub fn clock(&self, options: &Options) -> ScheduleClock {
        match options.text("clock") {
            "own" => ScheduleClock::Own,
            _ => ScheduleClock::Global,
        }
    }

    /// The learning rate by step, for a full rate of `lr` and a run of `total_steps` steps.
    pub fn build(&self, options: &Options, lr: f64, total_steps: u64) -> LearningRate {
        let warmup = options.whole("warmup_steps");
        let factor = (self.factor)(options, total_steps);
        Arc::new(move |step| {
            let warm = if step < warmup { (step + 1) as f64 / warmup as f64 } else { 1.0 };
            (lr * warm * factor(step)) as f32
        })
    }
}

impl std::fmt::Debug for ScheduleEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ScheduleEntry({})", self.meta.name)
    }
}

fn cosine(options: &Options, run_steps: u64) -> Factor {
    let (warmup, last) = (options.whole("warmup_steps"), options.real("final_fraction"));
    let end = match options.whole("total_steps") {
        0 => run_steps,
        total => total,
    };
    let length = end.saturating_sub(warmup).max(1) as f64;
    Box::new(move |step| {
        let done = (step.saturating_sub(warmup) as f64 / length).min(1.0);
        last + (1.0 - last) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
    })
}

/// Without a warm-up the fall begins at the first step.
fn inverse_sqrt(options: &Options, _: u64) -> Factor {
    let warmup = options.whole("warmup_steps").max(1) as f64;
    Box::new(move |step| (warmup / (step + 1) as f64).sqrt().min(1.0))
}

fn stairs(options: &Options, _: u64) -> Factor {
    let milestones = options.reals("milestones").to_vec();
    let gamma = options.real("gamma");
    Box::new(move |step| {
        let passed = milestones.partition_point(|milestone| *milestone <= step as f64);
        gamma.powi(passed as i32)
    })
}

fn check_milestones(options: &Options) -> Result<(), OptionError> {
    let milestones = options.reals("milestones");
    let whole = |step: &f64| *step >= 0.0 && step.fract() == 0.0;
    if !milestones.iter().all(whole) || !milestones.is_sorted() {
        let problem = "must be whole numbers of steps in rising order, such as [1000, 1500]";
        return Err(refused(options, "milestones", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(name: &str, given: &[(&str, Value)], steps: &[u64]) -> Vec<f32> {
        let entry = find_schedule(name).expect("in the table");
        let given = given.iter().map(|(name, value)| (name.to_string(), value.clone()));
        let rate = entry.build(&entry.params(given).expect("good"), 0.8, 100);
        steps.iter().map(|step| rate(*step)).collect()
    }

    #[test]
    fn constant_stays_after_a_linear_warm_up() {
        let warmup = [("warmup_steps", Value::Number(4.0))];
        assert_eq!(rates("constant", &[], &[0, 99]), [0.8, 0.8]);
        assert_eq!(
            rates("constant", &warmup, &[0, 1, 2, 3, 4, 99]),
            [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]
        );
    }

    #[test]
    fn stairs_go_down_at_their_milestones() {
        let given =
            [("milestones", Value::Numbers(vec![10.0, 20.0])), ("gamma", Value::Number(0.5))];
        assert_eq!(rates("step", &given, &[0, 9, 10, 19, 20, 500]), [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]);
    }

    #[test]
    fn cosine_ends_at_its_final_fraction_and_stays_there() {
        let given =
            [("final_fraction", Value::Number(0.25)), ("warmup_steps", Value::Number(20.0))];
        assert_eq!(rates("cosine", &given, &[19, 20, 60, 100, 1000]), [0.8, 0.8, 0.5, 0.2, 0.2]);
        assert_eq!(rates("cosine", &[("total_steps", Value::Number(50.0))], &[25, 50]), [0.4, 0.0]);
    }

    #[test]
    fn inverse_sqrt_peaks_at_the_end_of_the_warm_up() {
        let warmup = [("warmup_steps", Value::Number(4.0))];
        assert_eq!(rates("inverse-sqrt", &warmup, &[0, 3, 15, 63]), [0.2, 0.8, 0.4, 0.2]);
        assert_eq!(rates("inverse-sqrt", &[], &[0, 3, 15]), [0.8, 0.4, 0.2]);
    }

    #[test]
    fn impossible_schedules_are_refused_with_a_reason() {
        let refusal = |name: &str, key: &str, value: Value| {
            let entry = find_schedule(name).expect("in the table");
            entry.params([(key.to_string(), value)]).expect_err("refused").to_string()
        };
        for bad in [vec![20.0, 10.0], vec![0.5], vec![-1.0]] {
            let message = refusal("step", "milestones", Value::Numbers(bad));
            assert!(message.contains("rising order"), "{message}");
        }
        assert!(refusal("cosine", "final_fraction", Value::Number(2.0)).contains("from 0 to 1"));
        assert!(refusal("constant", "gamma", Value::Number(0.5)).contains("unknown key"));
        let message = refusal("constant", "clock", Value::Text("wall".into()));
        assert!(message.contains("global") && message.contains("own"), "{message}");
        assert_eq!(find_schedule("cosin").expect_err("unknown"), Some("cosine"));
    }

    #[test]
    fn rows_are_in_order_and_never_exceed_the_full_rate() {
        assert!(SCHEDULES.is_sorted_by_key(|entry| entry.meta.name));
        for entry in SCHEDULES {
            let given = [("warmup_steps".to_string(), Value::Number(7.0))];
            let rate = entry.build(&entry.params(given).expect("good"), 0.5, 50);
            assert!((0..200).all(|step| (0.0..=0.5).contains(&rate(step))), "{}", entry.meta.name);
        }
    }
}
