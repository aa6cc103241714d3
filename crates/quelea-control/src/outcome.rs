//! What a run comes to, from the last reports of its ranks.

use quelea_core::algorithms::Traffic;
use quelea_core::poison::{self, PoisonPolicy};
use quelea_record::{Outcome, RankReport};

use crate::controller::Controller;

impl Controller {
    pub(crate) fn outcome(&mut self) -> Outcome {
        self.leave_out_poisoned_reports();
        self.leave_out_false_replicas();
        if self.omitted_warnings > 0 {
            self.warnings.push(format!("and {} warnings more", self.omitted_warnings));
        }
        Outcome {
            clock_seconds: self.clock_seconds,
            warnings: std::mem::take(&mut self.warnings),
            ranks: self.ranks.iter_mut().filter_map(|progress| progress.report.take()).collect(),
            data: self.budget.books(),
            ..Outcome::default()
        }
    }

    /// Leaves workers out of the deployed model whose own is poisoned: one of them would spoil the mean of all. Where
    /// everybody's is, the run has diverged, and its models are kept as they are.
    fn leave_out_poisoned_reports(&mut self) {
        if self.setup.poison == PoisonPolicy::Ignore {
            return;
        }
        let workers =
            self.ranks.iter_mut().filter_map(|progress| progress.report.as_mut()).filter(has_model);
        let found =
            |model: &[f32], params: &[f32]| poison::find(model).or_else(|| poison::find(params));
        let (bad, good): (Vec<_>, Vec<_>) = workers
            .map(|report| (found(&report.model, &report.params), report))
            .partition(|(poison, _)| poison.is_some());
        if good.is_empty() {
            return;
        }
        for (poison, report) in bad {
            let (element, value) = poison.expect("only those were taken");
            report.lost = true;
            self.warnings.push(format!(
                "the model of rank {} is left out of the final one: its element {element} is {value:e}",
                report.rank
            ));
        }
    }

    /// Where the algorithm gives all workers the same bits at every step, leaves those out of the deployed model
    /// whose own differs from that of more than half of them.
    fn leave_out_false_replicas(&mut self) {
        let traffic = (self.setup.entry.traffic)(&self.setup.options);
        if !matches!(traffic, Traffic::Average { period: 1 }) {
            return;
        }
        let reports = || self.ranks.iter().filter_map(|progress| progress.report.as_ref());
        let models: Vec<&[f32]> =
            reports().filter(has_model).map(|report| &report.model[..]).collect();
        let Some(common) = majority(&models).map(<[f32]>::to_vec) else { return };
        let reports = self.ranks.iter_mut().filter_map(|progress| progress.report.as_mut());
        for report in reports.filter(has_model) {
            let differs = |(x, y): (&f32, &f32)| x.to_bits() != y.to_bits();
            if let Some(element) = report.model.iter().zip(&common).position(differs) {
                report.lost = true;
                self.warnings.push(format!(
                    "the model of rank {} is left out of the final one: its element {element} is {:e}, that of \
                     more than half of the workers {:e}",
                    report.rank, report.model[element], common[element]
                ));
            }
        }
    }
}

/// Whether the report's model is deployed with those of other workers.
fn has_model<R: std::ops::Deref<Target = RankReport>>(report: &R) -> bool {
    !report.is_server && !report.lost
}

/// The model that more than half of these are, bit by bit.
fn majority<'a>(models: &[&'a [f32]]) -> Option<&'a [f32]> {
    let same = |a: &[f32], b: &[f32]| {
        a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
    };
    // Each that differs from the candidate cancels one that does not: a majority is what is left.
    let mut candidate: Option<(&'a [f32], usize)> = None;
    for model in models {
        candidate = match candidate {
            None | Some((_, 0)) => Some((model, 1)),
            Some((other, count)) if same(other, model) => Some((other, count + 1)),
            Some((other, count)) => Some((other, count - 1)),
        };
    }
    let (candidate, _) = candidate?;
    let count = models.iter().filter(|model| same(model, candidate)).count();
    (2 * count > models.len()).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use super::majority;

    #[test]
    fn a_majority_has_the_same_bits_and_is_more_than_half() {
        let (a, b, c) = (&[1.0, 0.0][..], &[1.0, -0.0][..], &[1.0, 2.0][..]);
        assert_eq!(majority(&[]), None);
        assert_eq!(majority(&[a]), Some(a));
        assert_eq!(majority(&[a, b]), None);
        assert_eq!(majority(&[a, b, c]), None);
        assert_eq!(majority(&[b, c, a, c, c]), Some(c));
        assert_eq!(majority(&[c, c, a, b]), None);
        let found = majority(&[a, b, b]).expect("two of three");
        assert_eq!(found[1].to_bits(), b[1].to_bits());
    }
}
