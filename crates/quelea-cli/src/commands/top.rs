//! `quelea top`: a live run in the terminal, from the API of its page.

use std::io::IsTerminal;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_page::client::{self, ClientError};
use serde_json::Value;

use super::CommandSpec;
use crate::request::check_address;
use crate::text::{bold, bytes, columns, number, say, seconds, whole};
use quelea_page::access::PageProtection;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "top", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea train run.toml --page 127.0.0.1:8600 &
  quelea top                                    the run at 127.0.0.1:8600
  quelea top node7:8600 --interval 5            elsewhere; its token in QUELEA_PAGE_TOKEN
  quelea top --once                             print once, for scripts";

/// Show a live run in the terminal
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// Where the page of the run is
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:8600")]
    address: String,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,

    /// Print once and end
    #[arg(long)]
    once: bool,
}

/// The head of the column of bars.
const TIMES: &str = "compute █ exposed ▒ waiting ·";
/// Characters of a bar.
const BAR: usize = 20;
/// Clears the screen and goes to its corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    check_address("HOST:PORT", &args.address)?;
    let token = PageProtection::from_environment(false).token;
    let ask = |path: &str| client::get(&args.address, path, token.as_deref());
    let about = ask("/api/run")?;
    let is_screen = std::io::stdout().is_terminal() && !args.once;
    let listed = if is_screen {
        usize::from(console::Term::stdout().size().0).saturating_sub(12).max(4)
    } else {
        usize::MAX
    };
    loop {
        let state = match ask("/api/state") {
            Ok(state) => state,
            // The process of the run ends with it.
            Err(ClientError::Io { .. }) if !args.once => {
                say("the run's process has ended");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let screen = screen(&about, &state, listed);
        say(&format!("{}{screen}", if is_screen { CLEAR } else { "" }));
        if args.once || state["has_ended"] == true {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs_f64(args.interval.clamp(0.1, 3600.0)));
    }
}

/// What stands on the screen.
fn screen(about: &Value, state: &Value, listed: usize) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let progress = &state["progress"];
    let real = |value: &Value| value.as_f64().map_or("–".to_string(), number);
    let mut lines = vec![
        format!(
            "{} {}: {} on {}, {}",
            bold("quelea"),
            text(&about["name"]),
            text(&about["algorithm"]),
            text(&about["task"]),
            text(&state["phase"])
        ),
        format!(
            "{} of {} steps  {} samples/s (plan: {})  loss {}  accuracy {}  clock {}",
            whole(progress["steps"].as_u64().unwrap_or(0)),
            whole(progress["total_steps"].as_u64().unwrap_or(0)),
            real(&progress["samples_per_second"]),
            real(&state["advice"]["predicted_samples_per_second"]),
            real(progress.get("loss").filter(|v| !v.is_null()).unwrap_or(&progress["batch_loss"])),
            progress["accuracy"]
                .as_f64()
                .map_or("–".to_string(), |share| format!("{:.2} %", share * 100.0)),
            seconds(state["now"].as_f64().unwrap_or(0.0)),
        ),
        format!("consensus distance {}  goodput {}", consensus(progress), goodput(progress)),
        String::new(),
        columns(&rank_rows(state, listed)),
        format!("waits: {}", text(&state["waits"]["sentence"])),
        format!("advice: {}", text(&state["advice"]["sentence"])),
    ];
    let events = state["membership"].as_array().map(Vec::as_slice).unwrap_or_default();
    for event in events.iter().rev().take(3).rev() {
        let at = seconds(event["t"].as_f64().unwrap_or(0.0));
        lines.push(format!("{at}: {}", text(&event["text"])));
    }
    lines.join("\n")
}

fn consensus(progress: &Value) -> String {
    let sampled = &progress["sampled_consensus"];
    match (sampled["value"].as_f64(), sampled["error"].as_f64()) {
        (Some(value), Some(error)) => format!("{} ± {} (sampled)", number(value), number(error)),
        _ => progress["consensus_distance"].as_f64().map_or("–".to_string(), number),
    }
}

fn goodput(progress: &Value) -> String {
    let share = progress["goodput"].as_f64();
    share.map_or("–".to_string(), |share| format!("{:.1} %", share * 100.0))
}

fn rank_rows(state: &Value, listed: usize) -> Vec<Vec<String>> {
    let head = ["rank", "state", "step", "steps/s", TIMES, "loss", "sent", "memory", "GPU"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    let ranks = state["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    for rank in ranks.iter().take(listed) {
        let role = if rank["role"] == "server" { "server " } else { "" };
        rows.push(vec![
            format!("{role}{}", rank["rank"]),
            rank["state"].as_str().unwrap_or_default().to_string(),
            whole(rank["step"].as_u64().unwrap_or(0)),
            rank["steps_per_second"].as_f64().map_or(String::new(), number),
            bar(&rank["recent"]),
            rank["loss"].as_f64().map_or(String::new(), number),
            bytes(rank["bytes_sent"].as_u64().unwrap_or(0)),
            rank["resident_bytes"].as_u64().map_or(String::new(), bytes),
            rank["gpu_bytes"].as_u64().map_or(String::new(), bytes),
        ]);
    }
    if ranks.len() > listed {
        rows.push(vec![format!("… {} more", ranks.len() - listed)]);
    }
    rows
}

/// How the last steps were spent.
fn bar(recent: &Value) -> String {
    let parts = [("compute", '█'), ("exposed", '▒'), ("waiting", '·')];
    let values = parts.map(|(name, sign)| (recent[name].as_f64().unwrap_or(0.0), sign));
    let sum: f64 = values.iter().map(|(value, _)| value).sum();
    if sum <= 0.0 {
        return String::new();
    }
    let mut until = 0.0;
    let mut bar = String::new();
    for (value, sign) in values {
        until += value / sum * BAR as f64;
        let wanted = (until.round() as usize).min(BAR);
        bar.extend(std::iter::repeat_n(sign, wanted.saturating_sub(bar.chars().count())));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_the_shares_in_its_length() {
        let recent = serde_json::json!({ "compute": 0.5, "exposed": 0.25, "waiting": 0.25 });
        assert_eq!(bar(&recent), "██████████▒▒▒▒▒·····");
        assert_eq!(bar(&serde_json::json!({})), "");
    }
}
