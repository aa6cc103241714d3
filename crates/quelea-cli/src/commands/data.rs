//! `quelea data`: the data sets, downloading them, and verifying what one has.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quelea_core::registry::Registry;
use quelea_data::catalogue::{self, DATA_SETS, DataSet};
use quelea_data::check::{CheckReport, Checked, FileState, check, check_pictures};
use quelea_data::fetch::{Fetch, Told, fetch};
use quelea_run::error::RequestError;
use serde_json::json;

use super::CommandSpec;
use crate::text::{bold, bytes, mention, pale, say, whole};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "data", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea data                                  the data sets, and which of them are downloaded
  quelea data get fashion-mnist                download, verify, print the folder
  quelea data get cifar10 --to /data/cifar10   into this folder
  quelea data check /data/cifar10              is every file present and complete?
  quelea data check /data/imagenet             can every picture under train/ and val/ be decoded?

An interrupted download resumes when the same command is run again. Files are verified by the SHA-256
of their uncompressed content, so copies that were compressed again (.gz, .xz) are valid too.";

/// List data sets, download them, or verify what you have
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    action: Option<DataAction>,
}

#[derive(Debug, Subcommand)]
enum DataAction {
    /// Download a data set from its original address and verify it
    Get {
        /// Which one; `quelea data` has them all
        #[arg(value_name = "NAME")]
        name: String,

        /// Where to put it; without it, quelea/NAME in your folder for data
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,

        /// An address under which the same files lie, instead of the original one
        #[arg(long, value_name = "URL")]
        from: Option<String>,

        /// Print nothing but errors and where it is
        #[arg(long, short)]
        quiet: bool,
    },
    /// Find out which data set a folder or file is, and whether it is whole
    Check {
        /// The folder, or one file
        #[arg(value_name = "PATH")]
        path: PathBuf,

        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    match Args::from_arg_matches(matches)?.action {
        None => list(),
        Some(DataAction::Get { name, to, from, quiet }) => get(&name, to, from, quiet)?,
        Some(DataAction::Check { path, json }) => verify(&path, json)?,
    }
    Ok(())
}

fn list() {
    for row in DATA_SETS {
        say(&format!("{}  {}", bold(row.name), row.summary));
        let files = row.files().count();
        say(&format!("  {}, {}", bytes(row.bytes()), counted(files)));
        say(&format!("  {}", pale(&format!("terms: {}", row.terms))));
        if let Some(folder) = catalogue::home(row.name).filter(|folder| folder.is_dir()) {
            say(&format!("  here: {}", folder.display()));
        }
    }
    say("\ndigits, the embedded data set, needs no download");
}

fn counted(files: usize) -> String {
    if files == 1 { "1 file".to_string() } else { format!("{files} files") }
}

fn get(name: &str, to: Option<PathBuf>, mirror: Option<String>, quiet: bool) -> anyhow::Result<()> {
    let row = find(name)?;
    if let Some(given) = mirror.as_ref().filter(|url| !is_address(url)) {
        let problem = "must begin with http:// or https://";
        return Err(RequestError::field("--from", given, problem).into());
    }
    let to = to.or_else(|| catalogue::home(row.name)).ok_or_else(|| {
        RequestError::Conflict("there is no home folder; say --to DIR where to put it".into())
    })?;
    if to.exists() && !to.is_dir() {
        return Err(RequestError::file(&to, "is a file; --to names a folder").into());
    }
    let mut display = Display::new(quiet);
    if !quiet {
        mention(&format!("{}: {}", row.name, row.summary));
        mention(&format!("terms: {}", row.terms));
    }
    let options = Fetch { to: to.clone(), mirror, pause: Duration::from_secs(1) };
    let fetched = fetch(row, &options, &mut |told| display.take(told));
    display.clear();
    fetched?;
    let to = to.canonicalize().unwrap_or(to);
    say(&to.display().to_string());
    if !quiet {
        let files = counted(row.files().count());
        mention(&format!("{} is there, {files} verified, {}", row.name, bytes(row.bytes())));
    }
    Ok(())
}

fn is_address(url: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme))
}

fn find(name: &str) -> Result<&'static DataSet, RequestError> {
    catalogue::find(name).map_err(|nearest| {
        let names: Vec<&str> = DATA_SETS.iter().map(|row| row.name).collect();
        let meant = nearest.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
        let problem = format!("must be one of {}{meant}", names.join(", "));
        RequestError::field("NAME", name, problem)
    })
}

fn verify(path: &Path, as_json: bool) -> anyhow::Result<()> {
    if !path.exists() {
        return Err(RequestError::file(path, "is not there").into());
    }
    if path.join("train").is_dir() {
        return verify_pictures(path, as_json);
    }
    let mut display = Display::new(as_json);
    display.begin("reading", 0, None);
    let report = check(path, &mut |more| display.take(Told::Bytes(more)));
    display.clear();
    let Some(report) = report? else {
        let names: Vec<&str> = DATA_SETS.iter().map(|row| row.name).collect();
        let problem = format!("holds no file of a known data set ({})", names.join(", "));
        return Err(RequestError::file(path, problem).into());
    };
    if as_json {
        say(&serde_json::to_string_pretty(&report_json(&report))?);
    } else {
        print(&report);
    }
    let wrong = report.files.iter().filter(|file| file.state != FileState::Good).count();
    if wrong > 0 {
        let name = report.data_set.name;
        anyhow::bail!("{wrong} of {} of {name} wrong or missing", counted(report.files.len()));
    }
    Ok(())
}

/// A folder of pictures has no checksums: every picture is decoded.
fn verify_pictures(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let display = Mutex::new(Display::new(as_json));
    let lock = || display.lock().unwrap_or_else(PoisonError::into_inner);
    lock().begin_counting();
    let checked = check_pictures(path, &|| lock().advance(1));
    lock().clear();
    let (all, broken) = checked?;
    if as_json {
        let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
        say(&serde_json::to_string_pretty(&json!({ "pictures": all, "broken": broken }))?);
    } else {
        broken.iter().for_each(|error| say(&error.to_string()));
    }
    if !broken.is_empty() {
        anyhow::bail!(
            "{} of {} pictures are broken",
            whole(broken.len() as u64),
            whole(all as u64)
        );
    }
    if !as_json {
        say(&format!("{} pictures, all can be decoded", whole(all as u64)));
    }
    Ok(())
}

fn print(report: &CheckReport) {
    let name = |file: &Checked| {
        let path = file.path.as_deref().and_then(Path::file_name);
        path.map_or(file.name.into(), |name| name.to_string_lossy()).into_owned()
    };
    let width = report.files.iter().map(|file| name(file).chars().count()).max().unwrap_or(0);
    for file in &report.files {
        say(&format!("{:<width$}  {}", name(file), told(&file.state)));
    }
    if report.is_good() {
        say(&format!("{}: {}, good", report.data_set.name, counted(report.files.len())));
    }
}

fn told(state: &FileState) -> &str {
    match state {
        FileState::Good => "good",
        FileState::Missing => "missing",
        FileState::Wrong(problem) => problem,
    }
}

fn report_json(report: &CheckReport) -> serde_json::Value {
    let files = report.files.iter().map(|file| {
        json!({
            "name": file.name,
            "path": file.path,
            "is_good": file.state == FileState::Good,
            "state": told(&file.state),
        })
    });
    json!({
        "data_set": report.data_set.name,
        "is_good": report.is_good(),
        "files": files.collect::<Vec<_>>(),
    })
}

/// How far a download is: a bar on a terminal, a line for each tenth when piped.
struct Display {
    is_quiet: bool,
    bar: Option<ProgressBar>,
    name: String,
    done: u64,
    total: Option<u64>,
    tenth: u64,
}

impl Display {
    fn new(is_quiet: bool) -> Display {
        Display { is_quiet, bar: None, name: String::new(), done: 0, total: None, tenth: 0 }
    }

    fn take(&mut self, told: Told<'_>) {
        match told {
            Told::Present(name) => self.line(&format!("{name}  is there already and good")),
            Told::Begun { name, from, total } => {
                self.clear();
                self.begin(name, from, total);
                let size = total.map_or("of unknown size".to_string(), bytes);
                if from > 0 {
                    self.line(&format!("{name}  {size}, resuming after {}", bytes(from)));
                } else {
                    self.line(&format!("{name}  {size}"));
                }
            }
            Told::Bytes(more) => self.advance(more),
            Told::Again(problem) => self.line(&format!("{problem}; trying again")),
            Told::Verifying(name) => {
                self.clear();
                self.line(&format!("{name}  verifying"));
            }
        }
    }

    fn begin(&mut self, name: &str, from: u64, total: Option<u64>) {
        (self.name, self.done, self.total) = (name.to_string(), from, total);
        self.tenth = total.map_or(0, |total| from * 10 / total.max(1));
        if self.is_quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let template = match total {
            Some(_) => "{bar:24.cyan/dim} {percent:>3} %  {binary_bytes_per_sec}  {eta} left",
            None => "{spinner} {bytes}  {binary_bytes_per_sec}",
        };
        let style = ProgressStyle::with_template(template).expect("the template is well formed");
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
        bar.set_style(style.progress_chars("━╸─"));
        bar.set_position(from);
        bar.reset_eta();
        self.bar = Some(bar);
    }

    fn begin_counting(&mut self) {
        self.begin("pictures", 0, None);
        if let Some(bar) = &self.bar {
            let style = ProgressStyle::with_template("{spinner} {human_pos} pictures  {per_sec}");
            bar.set_style(style.expect("the template is well formed"));
        }
    }

    fn advance(&mut self, more: u64) {
        self.done += more;
        if let Some(bar) = &self.bar {
            return bar.set_position(self.done);
        }
        let tenth = self.total.map_or(0, |total| self.done * 10 / total.max(1));
        // What takes a moment needs no lines.
        if tenth > self.tenth && self.total.is_some_and(|total| total > 10_000_000) {
            self.tenth = tenth;
            self.line(&format!("{}  {} %  {}", self.name, tenth * 10, bytes(self.done)));
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            _ if self.is_quiet => {}
            Some(bar) => bar.suspend(|| mention(text)),
            None => mention(text),
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
