//! What a run comes to, from the last reports of its ranks.

use quelea_core::poison::{self, PoisonPolicy};
use quelea_record::Outcome;

use crate::controller::Controller;

impl Controller {
    pub(crate) fn outcome(&mut self) -> Outcome {
        self.leave_out_poisoned_reports();
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
        let reports = self.ranks.iter_mut().filter_map(|progress| progress.report.as_mut());
        let workers = reports.filter(|report| !report.is_server && !report.lost);
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
}
