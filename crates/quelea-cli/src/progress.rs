//! How far a run is: a bar on a terminal, plain lines when piped.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quelea_record::{Record, RecordKind};

use crate::text::{keep_above, mention, number, seconds, whole};

/// The longest that a piped run says nothing.
const SILENCE: Duration = Duration::from_secs(30);
/// Records between two looks at the clock.
const POLL_INTERVAL: u64 = 64;

/// Shows how many of a run's steps are done.
pub struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
    total: u64,
    done: u64,
    /// Those that were done before, by another process.
    before: u64,
    samples: u64,
    loss: Option<f64>,
    /// Of the last evaluation.
    accuracy: Option<f64>,
    /// When the first step was done: joining and loading say nothing about the rate.
    began: Option<Instant>,
    spoke: Instant,
    tenth: u64,
}

impl Progress {
    /// For `total` steps, of which some are `done`; `quiet` shows nothing.
    pub fn new(total: u64, done: u64, quiet: bool) -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        let bar = (is_terminal && !quiet).then(|| bar(total));
        keep_above(bar.clone());
        Progress {
            bar,
            lines: !is_terminal && !quiet,
            total,
            done,
            before: done,
            samples: 0,
            loss: None,
            accuracy: None,
            began: None,
            spoke: Instant::now(),
            tenth: 0,
        }
    }

    /// Takes a record of the run.
    pub fn take(&mut self, record: &Record) {
        let (loss, samples) = match &record.event {
            RecordKind::Step { loss, samples, .. } => (*loss, *samples),
            RecordKind::Evaluation { accuracy, .. } => {
                self.accuracy = *accuracy;
                return;
            }
            RecordKind::Checkpoint { failure: Some(why) } => {
                return self.tell(&format!("checkpoint of step {}: {why}", record.step));
            }
            RecordKind::Lost => return self.tell_of(record, "lost", "; the others continue"),
            RecordKind::Left => return self.tell_of(record, "left", "; the others continue"),
            RecordKind::Joined => return self.tell_of(record, "joined", ""),
            _ => return,
        };
        if self.began.is_none() {
            self.began = Some(Instant::now());
            self.bar.iter().for_each(ProgressBar::reset_elapsed);
            self.bar.iter().for_each(ProgressBar::reset_eta);
        }
        self.done += 1;
        self.samples += u64::from(samples);
        // Mini-batches are noisy: show about the mean of the last fifty.
        let loss = f64::from(loss);
        self.loss = Some(self.loss.map_or(loss, |smooth| smooth + 0.02 * (loss - smooth)));
        if self.done.is_multiple_of(POLL_INTERVAL) || self.done == self.total {
            self.show();
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        keep_above(None);
    }

    /// Says who takes part no more, or again.
    fn tell_of(&self, record: &Record, what: &str, then: &str) {
        let Record { t, rank, step, .. } = *record;
        self.tell(&format!("{t:.2} s: worker {rank} {what} after {step} steps{then}"));
    }

    /// Says something above the bar.
    fn tell(&self, text: &str) {
        if self.bar.is_some() || self.lines {
            mention(text);
        }
    }

    fn show(&mut self) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            bar.set_message(self.quality());
            bar.set_prefix(format!("{} samples/s", whole(self.samples_per_second())));
        }
        let tenth = self.done * 10 / self.total.max(1);
        if self.lines && (tenth > self.tenth || self.spoke.elapsed() > SILENCE) {
            (self.tenth, self.spoke) = (tenth, Instant::now());
            mention(&self.line());
        }
    }

    fn elapsed(&self) -> f64 {
        self.began.map_or(0.0, |began| began.elapsed().as_secs_f64()).max(1e-9)
    }

    fn samples_per_second(&self) -> u64 {
        (self.samples as f64 / self.elapsed()) as u64
    }

    /// "loss 0.1234  accuracy 91.20 %", as far as they are known.
    fn quality(&self) -> String {
        let loss = self.loss.map(|loss| format!("loss {}", number(loss)));
        let accuracy = self.accuracy.map(|share| format!("accuracy {:.2} %", share * 100.0));
        let parts: Vec<String> = loss.into_iter().chain(accuracy).collect();
        parts.join("  ")
    }

    fn line(&self) -> String {
        let rate = (self.done - self.before) as f64 / self.elapsed();
        let remaining = self.total.saturating_sub(self.done) as f64 / rate;
        format!(
            "{:>3} %  {} of {} steps  {} samples/s  {} left  {}",
            self.done * 100 / self.total.max(1),
            whole(self.done),
            whole(self.total),
            whole(self.samples_per_second()),
            seconds(remaining),
            self.quality()
        )
    }
}

/// What fits into one line of so many columns, with numbers as long as they get: a line that wraps
/// is not drawn over but piles up.
fn template(columns: u16) -> &'static str {
    match columns {
        142.. => {
            "{bar:32.cyan/dim} {percent:>3} %  {human_pos} of {human_len} steps  {prefix}  \
             {eta} left  {msg}"
        }
        88.. => "{bar:12.cyan/dim} {percent:>3} %  {prefix}  {eta} left  {msg}",
        54.. => "{percent:>3} %  {eta} left  {msg}",
        _ => "{percent:>3} %",
    }
}

fn bar(total: u64) -> ProgressBar {
    let template = template(console::Term::stderr().size().1);
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(15));
    bar.set_style(style.progress_chars("━╸─"));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_longer_than_the_terminal_is_wide() {
        let longest = [
            ("{bar:32.cyan/dim}", 32),
            ("{bar:12.cyan/dim}", 12),
            ("{percent:>3}", 3),
            ("{human_pos}", 11),
            ("{human_len}", 11),
            ("{prefix}", "123,456,789 samples/s".len()),
            ("{eta}", 3),
            ("{msg}", "loss -1.234e-10  accuracy 100.00 %".len()),
        ];
        for columns in 5..200 {
            let fill = |line: String, (key, length): &(&str, usize)| {
                line.replace(key, &"x".repeat(*length))
            };
            let line = longest.iter().fold(template(columns).to_string(), fill);
            assert!(!line.contains('{') && line.len() < usize::from(columns).max(6), "{line}");
        }
    }
}
