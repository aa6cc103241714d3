//! One parameter fitted on one published figure, by bisection over the simulator.

use crate::error::ExperimentError;

/// What is fitted on what.
#[derive(Clone, Debug)]
pub struct Fit<'a> {
    /// The parameter.
    pub parameter: &'a str,
    /// The published figure, as the report names it.
    pub cell: &'a str,
    /// Its value.
    pub goal: f64,
    /// Where to search.
    pub range: (f64, f64),
}

impl Fit<'_> {
    /// The value whose `outcome`, monotonous in it, is the goal.
    pub fn solve(
        &self,
        outcome: impl FnMut(f64) -> Result<f64, ExperimentError>,
    ) -> Result<f64, ExperimentError> {
        self.solve_to(1e-5, outcome)
    }

    /// The same to a relative precision, where the outcome itself is not more precise.
    pub fn solve_to(
        &self,
        precision: f64,
        mut outcome: impl FnMut(f64) -> Result<f64, ExperimentError>,
    ) -> Result<f64, ExperimentError> {
        let (mut low, mut high) = self.range;
        let rises = match (outcome(low)?, outcome(high)?) {
            (a, b) if a <= self.goal && self.goal <= b => true,
            (a, b) if b <= self.goal && self.goal <= a => false,
            _ => return Err(self.refused()),
        };
        // Halving thirty times leaves less than a billionth of the range.
        for _ in 0..30 {
            let middle = (low + high) / 2.0;
            let found = outcome(middle)?;
            if (found / self.goal - 1.0).abs() < precision {
                return Ok(middle);
            }
            if (found < self.goal) == rises { low = middle } else { high = middle }
        }
        Ok((low + high) / 2.0)
    }

    fn refused(&self) -> ExperimentError {
        ExperimentError::Fit {
            parameter: self.parameter.to_string(),
            cell: self.cell.to_string(),
            low: self.range.0,
            high: self.range.1,
            goal: self.goal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rising_and_falling_outcomes_are_solved() {
        let fit = Fit { parameter: "x", cell: "y", goal: 2.0, range: (0.5, 10.0) };
        let root = fit.solve(|x| Ok(x * x)).expect("solvable");
        assert!((root - 2f64.sqrt()).abs() < 1e-4, "{root}");
        let root = fit.solve(|x| Ok(8.0 / x)).expect("solvable");
        assert!((root - 4.0).abs() < 1e-4, "{root}");
    }

    #[test]
    fn what_cannot_be_reached_is_said() {
        let fit = Fit { parameter: "x", cell: "y", goal: 200.0, range: (0.0, 10.0) };
        let error = fit.solve(|x| Ok(x * x)).expect_err("too small");
        assert_eq!(error.to_string(), "cannot fit x on y: no value from 0 to 10 gives 200");
    }
}
