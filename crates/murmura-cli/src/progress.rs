//! How far a run is: a bar on a terminal, plain lines when piped.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use murmura_record::{Event, Record};

use crate::text::{number, seconds, whole};

/// The longest that a piped run says nothing.
const SILENCE: Duration = Duration::from_secs(30);
/// Records between two looks at the clock.
const GLANCE: u64 = 64;

/// Shows how many of a run's steps are done.
pub struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
    total: u64,
    done: u64,
    loss: Option<f64>,
    /// When the first step was done: joining and loading say nothing about the rate.
    began: Option<Instant>,
    spoke: Instant,
    tenth: u64,
}

impl Progress {
    /// For `total` steps; `quiet` shows nothing.
    pub fn new(total: u64, quiet: bool) -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        Progress {
            bar: (is_terminal && !quiet).then(|| bar(total)),
            lines: !is_terminal && !quiet,
            total,
            done: 0,
            loss: None,
            began: None,
            spoke: Instant::now(),
            tenth: 0,
        }
    }

    /// Takes a record of the run.
    pub fn take(&mut self, record: &Record) {
        let Event::Step { loss, .. } = record.event else {
            return;
        };
        if self.began.is_none() {
            self.began = Some(Instant::now());
            self.bar.iter().for_each(ProgressBar::reset_elapsed);
        }
        self.done += 1;
        // Mini-batches are noisy: show about the mean of the last fifty.
        let loss = f64::from(loss);
        self.loss = Some(self.loss.map_or(loss, |smooth| smooth + 0.02 * (loss - smooth)));
        if self.done.is_multiple_of(GLANCE) || self.done == self.total {
            self.show();
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn show(&mut self) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            bar.set_message(self.loss.map(number).unwrap_or_default());
        }
        let tenth = self.done * 10 / self.total.max(1);
        if self.lines && (tenth > self.tenth || self.spoke.elapsed() > SILENCE) {
            (self.tenth, self.spoke) = (tenth, Instant::now());
            eprintln!("{}", self.line());
        }
    }

    fn line(&self) -> String {
        let elapsed = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        let rate = self.done as f64 / elapsed.max(1e-9);
        let remaining = self.total.saturating_sub(self.done) as f64 / rate;
        format!(
            "{:>3} %  {} of {} steps  {} steps/s  {} left  loss {}",
            self.done * 100 / self.total.max(1),
            whole(self.done),
            whole(self.total),
            whole(rate as u64),
            seconds(remaining),
            self.loss.map(number).unwrap_or_default()
        )
    }
}

fn bar(total: u64) -> ProgressBar {
    let template = "{bar:32.cyan/dim} {percent:>3} %  {human_pos} of {human_len} steps  \
                    {rate}  {eta} left  loss {msg}";
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(15));
    let rate = |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        let _ = write!(out, "{} steps/s", whole(state.per_sec() as u64));
    };
    bar.set_style(style.with_key("rate", rate).progress_chars("━╸─"));
    bar
}
