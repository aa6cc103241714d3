//! What an experiment came to: their numbers, ours, what ours rest on, pictures, remarks.

use quelea_plot::Chart;

/// What an experiment came to.
#[derive(Clone, Debug, Default)]
pub struct PaperReport {
    /// The experiment's name.
    pub name: String,
    /// What it is about.
    pub title: String,
    /// Whose numbers they are.
    pub paper: String,
    /// The seed.
    pub seed: u64,
    /// Numbers beside numbers.
    pub tables: Vec<ReportTable>,
    /// What the numbers rest on.
    pub parameters: Vec<Parameter>,
    /// Pictures, by the name of their file.
    pub charts: Vec<(String, Chart)>,
    /// What must hold, and whether it does.
    pub claims: Vec<Claim>,
    /// Remarks, in sentences: what is not explained, and our best reading of why.
    pub notes: Vec<String>,
    /// Why there is nothing of all this, where there is not.
    pub not_run: Option<String>,
}

/// Numbers of one kind.
#[derive(Clone, Debug, Default)]
pub struct ReportTable {
    /// What they are, with their unit.
    pub title: String,
    /// Row by row.
    pub cells: Vec<ReportCell>,
}

impl ReportTable {
    /// The rows of a column that has published figures, the best one first.
    pub fn order(
        &self,
        column: &str,
        best: BestValue,
        of: impl Fn(&ReportCell) -> f64,
    ) -> Vec<&str> {
        let chosen = |cell: &&ReportCell| cell.column == column && cell.paper.is_some();
        let mut cells: Vec<&ReportCell> = self.cells.iter().filter(chosen).collect();
        cells.sort_by(|a, b| match best {
            BestValue::Lowest => of(a).total_cmp(&of(b)),
            BestValue::Highest => of(b).total_cmp(&of(a)),
        });
        cells.iter().map(|cell| cell.row.as_str()).collect()
    }
}

impl ReportTable {
    /// Whether a column has the spread over seeds.
    fn has_spread(&self, column: &str) -> bool {
        self.cells.iter().any(|cell| cell.column == column && cell.spread.is_some())
    }

    /// Pairs that are not in the order of `rows`, and farther apart than their seeds.
    fn reversed(&self, column: &str, best: BestValue, rows: &[&str]) -> Vec<String> {
        let cell = |row: &str| {
            let found = |cell: &&ReportCell| cell.row == row && cell.column == column;
            self.cells.iter().find(found).expect("a row of this table")
        };
        let mut reversed = Vec::new();
        for (place, better) in rows.iter().enumerate() {
            for worse in &rows[place + 1..] {
                let (a, b) = (cell(better), cell(worse));
                let ahead = match best {
                    BestValue::Lowest => b.ours - a.ours,
                    BestValue::Highest => a.ours - b.ours,
                };
                if ahead < -(a.spread.unwrap_or(0.0) + b.spread.unwrap_or(0.0)) {
                    reversed.push(format!("{worse} before {better}"));
                }
            }
        }
        reversed
    }
}

/// One number beside the published one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportCell {
    /// Its row.
    pub row: String,
    /// Its column.
    pub column: String,
    /// The published figure, if there is one.
    pub paper: Option<Figure>,
    /// Ours; the mean, where there are several seeds.
    pub ours: f64,
    /// How far the farthest seed is from that mean, where there are several.
    pub spread: Option<f64>,
    /// Whether a parameter was fitted on it, or it is a ratio of figures on which some were: then it
    /// predicts nothing.
    pub fitted: bool,
}

/// A published figure, as it was printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its value.
    pub value: f64,
    /// Half a unit of its last digit: what rounding may have taken away.
    pub rounding: f64,
    /// Published for another task than ours: it is shown beside, never with a difference.
    pub elsewhere: bool,
}

impl Figure {
    /// A figure with so many printed decimals.
    pub fn printed(value: f64, decimals: i32) -> Figure {
        Figure::rounded(value, 0.5 * 10f64.powi(-decimals))
    }

    /// A figure that rounding may have changed by so much.
    pub fn rounded(value: f64, rounding: f64) -> Figure {
        Figure { value, rounding, elsewhere: false }
    }

    /// How many decimals it was printed with, about.
    pub fn decimals(&self) -> usize {
        (-(2.0 * self.rounding).log10()).round().clamp(0.0, 6.0) as usize
    }

    /// The same, published for another task.
    pub fn elsewhere(self) -> Figure {
        Figure { elsewhere: true, ..self }
    }
}

impl ReportCell {
    /// A number of ours beside which nothing was published.
    pub fn new(row: impl Into<String>, column: impl Into<String>, ours: f64) -> ReportCell {
        ReportCell { row: row.into(), column: column.into(), ours, ..ReportCell::default() }
    }

    /// Relative difference to the printed figure; none for a cell that was fitted, was not
    /// published, or was published for another task.
    pub fn error(&self) -> Option<f64> {
        Some(self.ours / self.predicted()?.value - 1.0)
    }

    /// Relative difference to the nearest value that would have been printed the same.
    pub fn error_beyond_rounding(&self) -> Option<f64> {
        let figure = self.predicted()?;
        let beyond = (self.ours - figure.value).abs() - figure.rounding;
        Some(beyond.max(0.0) / figure.value)
    }

    /// The printed figure, where ours is a prediction of it.
    fn predicted(&self) -> Option<Figure> {
        self.paper.filter(|figure| !self.fitted && !figure.elsewhere)
    }
}

/// Something the numbers rest on.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// What it is.
    pub name: String,
    /// Its value, with its unit.
    pub value: String,
    /// Where it comes from.
    pub source: ParameterSource,
}

/// Where a parameter comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterSource {
    /// The paper says so.
    Stated,
    /// Fitted on this cell.
    Fitted(String),
    /// One of several readings of what the paper leaves open, chosen because it explains the
    /// published figures best: a fit, though no number was turned.
    FittedDiscrete {
        /// The reading that was not chosen, and what it would come to.
        other: String,
    },
    /// Not said by anybody; chosen for this reason.
    Assumed(String),
    /// Measured by us, like this.
    Measured(String),
    /// Follows from others, like this.
    Derived(String),
}

impl std::fmt::Display for ParameterSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ParameterSource::Stated => write!(f, "stated"),
            ParameterSource::Fitted(cell) => write!(f, "fitted on {cell}"),
            ParameterSource::FittedDiscrete { other } => write!(f, "fitted (discrete); {other}"),
            ParameterSource::Assumed(why) => write!(f, "assumed: {why}"),
            ParameterSource::Measured(how) => write!(f, "measured: {how}"),
            ParameterSource::Derived(how) => write!(f, "derived: {how}"),
        }
    }
}

/// Something that must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// In a sentence, with the numbers.
    pub text: String,
    /// Whether it does; nothing where no tolerance was fixed beforehand, so that there is only
    /// something to be seen.
    pub holds: Option<bool>,
}

impl Claim {
    /// In a word.
    pub fn answer(&self) -> &'static str {
        match self.holds {
            Some(true) => "yes",
            Some(false) => "no",
            None => "–",
        }
    }
}

/// What a predicted cell must keep to. It is one number for all experiments and was fixed before the
/// runs (decision 48), so that it cannot have been chosen by looking at a result.
pub const TOLERANCE: f64 = 0.10;

/// Which end of a column is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BestValue {
    /// As of times and losses.
    Lowest,
    /// As of accuracies.
    Highest,
}

impl PaperReport {
    /// A report without content.
    pub fn new(name: &str, title: &str, paper: &str) -> PaperReport {
        PaperReport {
            name: name.to_string(),
            title: title.to_string(),
            paper: paper.to_string(),
            ..PaperReport::default()
        }
    }

    /// All cells.
    pub fn cells(&self) -> impl Iterator<Item = &ReportCell> {
        self.tables.iter().flat_map(|table| &table.cells)
    }

    /// Adds a parameter.
    pub fn rests_on(&mut self, name: &str, value: impl Into<String>, source: ParameterSource) {
        self.parameters.push(Parameter { name: name.to_string(), value: value.into(), source });
    }

    /// Adds parameters that nothing but a reason supports: name, value, why.
    pub fn assumes<'a, V: Into<String>>(
        &mut self,
        assumed: impl IntoIterator<Item = (&'a str, V, &'a str)>,
    ) {
        for (name, value, why) in assumed {
            self.rests_on(name, value, ParameterSource::Assumed(why.into()));
        }
    }

    /// Adds a claim.
    pub fn claim(&mut self, text: impl Into<String>, holds: bool) {
        self.claims.push(Claim { text: text.into(), holds: Some(holds) });
    }

    /// Adds something that was found, without yes or no.
    pub fn finding(&mut self, text: impl Into<String>) {
        self.claims.push(Claim { text: text.into(), holds: None });
    }

    /// Claims that the predicted cells that `chosen` picks are within [`TOLERANCE`], rounding of the
    /// printed figure aside. Without such a cell nothing is claimed.
    pub fn claim_within(&mut self, what: &str, chosen: impl Fn(&ReportCell) -> bool) {
        let errors =
            self.cells().filter(|cell| chosen(cell)).filter_map(ReportCell::error_beyond_rounding);
        let (worst, count) = errors.fold((0.0, 0), |(worst, n), e| (f64::max(worst, e), n + 1));
        if count == 0 {
            return;
        }
        let text = format!(
            "{what}: {count} predicted, worst {:.1} % beyond rounding, asked for {:.0} %",
            100.0 * worst,
            100.0 * TOLERANCE
        );
        self.claim(text, worst <= TOLERANCE);
    }

    /// Claims that the rows of a column come in the published order, the best one first; says
    /// which order came out. Two rows count as reversed only where they are farther apart than their
    /// seeds are.
    pub fn claim_order(&mut self, table: &ReportTable, column: &str, best: BestValue) {
        let published = |cell: &ReportCell| cell.paper.map_or(f64::NAN, |figure| figure.value);
        let theirs = table.order(column, best, published);
        let ours = table.order(column, best, |cell| cell.ours);
        let mut text = format!(
            "{}, {column}: published {}; ours {}",
            table.title,
            theirs.join(", "),
            ours.join(", ")
        );
        let reversed = table.reversed(column, best, &theirs);
        if ours != theirs && reversed.is_empty() {
            text += "; what differs is within the seeds' spread";
        } else if !reversed.is_empty() && table.has_spread(column) {
            text += &format!("; beyond the seeds' spread: {}", reversed.join(", "));
        }
        self.claim(text, reversed.is_empty());
    }

    /// Adds a remark.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The cell at this place.
    pub fn cell(&self, row: &str, column: &str) -> Option<&ReportCell> {
        self.cells().find(|cell| cell.row == row && cell.column == column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_differs_is_said_with_both() {
        let cell = |row: &str, paper: f64, ours| ReportCell {
            row: row.into(),
            column: "accuracy".into(),
            paper: Some(Figure::printed(paper, 1).elsewhere()),
            ours,
            ..ReportCell::default()
        };
        let cells = vec![cell("a", 1.0, 5.0), cell("b", 2.0, 6.0), cell("c", 3.0, 5.5)];
        assert_eq!(cells[0].error(), None, "another task is not compared");
        assert_eq!(Figure::printed(3.042, 3).decimals(), 3);
        let table = ReportTable { title: "Times".into(), cells };
        let mut report = PaperReport::default();
        report.claim_order(&table, "accuracy", BestValue::Highest);
        let text = "Times, accuracy: published c, b, a; ours b, c, a".to_string();
        assert_eq!(report.claims, [Claim { text, holds: Some(false) }]);
    }

    #[test]
    fn rows_that_are_closer_than_their_seeds_are_not_reversed() {
        let cell = |row: &str, paper: f64, ours, spread| ReportCell {
            paper: Some(Figure::printed(paper, 1).elsewhere()),
            spread: Some(spread),
            ..ReportCell::new(row, "loss", ours)
        };
        let cells =
            vec![cell("a", 1.0, 5.2, 0.2), cell("b", 2.0, 5.1, 0.1), cell("c", 3.0, 4.0, 0.3)];
        let mut report = PaperReport::default();
        let mut table = ReportTable { title: "End".into(), cells };
        report.claim_order(&table, "loss", BestValue::Lowest);
        table.cells.pop();
        report.claim_order(&table, "loss", BestValue::Lowest);
        let [first, second] = &report.claims[..] else { panic!("two claims") };
        assert_eq!(first.holds, Some(false));
        assert!(
            first.text.ends_with("beyond the seeds' spread: c before a, c before b"),
            "{first:?}"
        );
        assert_eq!(second.holds, Some(true));
        assert!(second.text.ends_with("within the seeds' spread"), "{second:?}");
    }

    #[test]
    fn what_has_no_tolerance_gets_no_answer_and_nothing_predicted_claims_nothing() {
        let mut report = PaperReport::default();
        report.finding("12 % apart");
        report.claim_within("cells that are not there", |_| true);
        let text = "12 % apart".to_string();
        assert_eq!(report.claims, [Claim { text, holds: None }]);
        assert_eq!(report.claims[0].answer(), "–");
    }

    #[test]
    fn rounding_is_not_held_against_us_and_fits_have_no_error() {
        let figure = Some(Figure::printed(0.07, 2));
        let mut cell = ReportCell {
            row: "a".into(),
            column: "b".into(),
            paper: figure,
            ours: 0.0748,
            ..ReportCell::default()
        };
        assert_eq!(cell.error_beyond_rounding(), Some(0.0));
        assert!(cell.error().is_some_and(|error| (error - 0.0686).abs() < 1e-3));
        cell.fitted = true;
        assert_eq!((cell.error(), cell.error_beyond_rounding()), (None, None));
    }
}
