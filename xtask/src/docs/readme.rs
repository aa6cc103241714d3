//! The measured numbers of the README and its picture, made from `docs/benchmarks.json`.

use anyhow::{Context, Result};
use quelea_plot::{Axis, BarChart, BarSeries, Chart};
use serde_json::Value;

/// Above the numbers in the README.
pub(super) const MARK: &str =
    "<!-- Made from docs/benchmarks.json by `cargo xtask docs`; do not edit. -->\n";

/// Results of benches that were kept.
pub(super) struct Kept {
    rows: Vec<Value>,
}

impl Kept {
    pub(super) fn parse(json: &str) -> Result<Kept> {
        Ok(Kept { rows: serde_json::from_str(json)? })
    }

    /// All rows of one bench.
    pub(super) fn of_bench(&self, bench: &str) -> impl Iterator<Item = &Value> {
        self.rows.iter().filter(move |row| row["bench"] == bench)
    }

    /// A number of the row with this name.
    fn number(&self, name: &str, field: &str) -> Result<f64> {
        let row = self.rows.iter().find(|row| row["name"] == name);
        let row = row.with_context(|| format!("docs/benchmarks.json has no row `{name}`"))?;
        row[field].as_f64().with_context(|| format!("`{name}` has no number `{field}`"))
    }

    /// The least and the largest ratio of predicted to measured time.
    fn predictions(&self) -> Result<(f64, f64)> {
        let is_time = |row: &&Value| row["bench"] == "reality" && row["measured_ms"].is_number();
        let ratios = self.rows.iter().filter(is_time).filter_map(|row| row["ratio"].as_f64());
        let range = ratios.fold(None, |range: Option<(f64, f64)>, ratio| {
            let (low, high) = range.unwrap_or((ratio, ratio));
            Some((low.min(ratio), high.max(ratio)))
        });
        range.context("docs/benchmarks.json has no row of `reality`")
    }
}

/// The table of measured numbers, each with the command that measures it again.
pub(super) fn numbers(kept: &Kept) -> Result<String> {
    let slow = "one host 10 times slower";
    let ddp = kept.number(&format!("allreduce to ddp, {slow}"), "theirs_ms")?;
    let aladdin = kept.number(&format!("aladdin to undisturbed, {slow}"), "ours_ms")?;
    let gigabit = kept.number("allreduce to ddp, 1000 Mbit/s", "theirs_ms")?;
    let gossip = kept.number("gossip to decent-dp, 1000 Mbit/s", "ours_ms")?;
    let fashion = "ad-psgd to 80 %, one host 4 times slower";
    let of_fashion = |field| kept.number(fashion, field);
    let (ddp_seconds, seconds) = (of_fashion("ddp_seconds")?, of_fashion("ours_seconds")?);
    let (least, most) = (of_fashion("least")?, of_fashion("most")?);
    let (low, high) = kept.predictions()?;
    let (restart, next) = (of_survivor(kept, "torchrun")?, of_survivor(kept, "quelea d-psgd")?);
    let simulated = kept.number("d-psgd, 1,024 workers × 200 steps", "seconds")?;
    Ok(format!(
        "| measured | PyTorch DDP | quelea | reproduce with |\n|---|---|---|---|\n\
         | four hosts, one of them 10 times slower: a step of the other three | {ddp:.0} ms | \
         **{aladdin:.0} ms** (`aladdin`), {:.1} times faster; all four together {:.1} times as many samples per \
         second | `cargo xtask bench peers-slow` |\n\
         | four hosts, one of them 4 times slower: until a CNN has 80 % test accuracy on Fashion-MNIST | \
         {ddp_seconds:.1} s | **{seconds:.1} s** (`ad-psgd`), {least:.1} to {most:.1} times faster with five \
         seeds | `cargo xtask bench accuracy` |\n\
         | four equal hosts, links of 1 Gbit/s: a step | {gigabit:.0} ms | \
         **{gossip:.0} ms** (`d-psgd` on `one-peer-hypercube`), {:.2} times faster | `cargo xtask bench peers-1gbit` |\n\
         | four processes, one other than rank 0's killed: until the next step of the others | {restart:.1} s (torchrun \
         restarts all) | **{next:.2} s** (`d-psgd`) | `cargo xtask bench survive` |\n\
         | predicted time of a step divided by measured time, five algorithms, 1 Gbit/s and 100 Mbit/s | – | \
         **{low:.2} to {high:.2}** | `cargo xtask bench reality` |\n\
         | simulating 1,024 workers for 200 steps, on one core | – | **{simulated:.2} s** | `cargo xtask bench \
         scale` |\n",
        ddp / aladdin,
        // The slow host takes a step in as long as all of them do under DDP.
        (3.0 / aladdin + 1.0 / ddp) / (4.0 / ddp),
        gigabit / gossip,
    ))
}

/// Seconds from SIGKILL to a process until the next step of the others.
fn of_survivor(kept: &Kept, name: &str) -> Result<f64> {
    kept.number(name, "next_step_seconds")
}

/// Time per step with a slow host: methods that wait for it, and methods that do not.
pub(super) fn straggler_svg(kept: &Kept) -> Result<String> {
    let places = [2, 10].map(|slow| format!("one host {slow} times slower"));
    let series = |name: &str, row: &str, field: &str| -> Result<BarSeries> {
        let values = places.iter().map(|place| kept.number(&format!("{row}, {place}"), field));
        let values: Vec<f64> = values.collect::<Result<_>>()?;
        Ok(BarSeries::new(name, values.into_iter().map(Some).collect()))
    };
    let chart = BarChart {
        title: "Time per step when one of four hosts is slow".into(),
        y: Axis::linear("milliseconds per step"),
        groups: places.to_vec(),
        series: vec![
            series("PyTorch DDP", "allreduce to ddp", "theirs_ms")?,
            series("Decent-DP", "gossip to decent-dp", "theirs_ms")?,
            series("quelea ad-psgd", "ad-psgd to undisturbed", "ours_ms")?,
            series("quelea aladdin", "aladdin to undisturbed", "ours_ms")?,
        ],
        stacked: false,
    };
    Ok(Chart::Bars(chart).svg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_shows_what_was_measured() {
        let root = super::super::root();
        let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("it is there");
        let kept = Kept::parse(&read("docs/benchmarks.json")).expect("rows");
        let numbers = numbers(&kept).expect("all of them were measured");
        assert!(read("README.md").contains(&numbers), "run `cargo xtask docs`");
        assert_eq!(read("docs/images/straggler.svg"), straggler_svg(&kept).expect("measured"));
    }

    #[test]
    fn a_number_that_was_not_measured_is_named() {
        let error = numbers(&Kept::parse("[]").expect("no rows")).expect_err("nothing is kept");
        assert!(error.to_string().contains("one host 10 times slower"), "{error}");
    }
}
