//! Records of a script's run, for whoever looks at it: `quelea launch --page` names a folder in
//! `QUELEA_RECORDS`, and rank 0 writes there what `quelea train` writes to `records.jsonl`.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quelea_record::{Observer, Record};
use quelea_run::files::records::write_line;
use serde_json::{Value, json};

/// Names the folder.
const VARIABLE: &str = "QUELEA_RECORDS";
/// The longest that a record stays in this process.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// Writes the records of a run as they come.
pub(crate) struct ScriptRecorder {
    out: BufWriter<File>,
    flushed: Instant,
}

impl ScriptRecorder {
    /// If the environment asks for records, and they can be written; training does not depend on it.
    pub(crate) fn from_environment(config: &Value) -> Option<ScriptRecorder> {
        let folder = PathBuf::from(std::env::var_os(VARIABLE)?);
        let file = File::create(folder.join("records.jsonl")).ok()?;
        let mut config = config.clone();
        // The script decides how long it trains, and on what.
        config["steps"] = json!(0);
        config["task"] = json!({ "name": "a PyTorch script" });
        let beside = folder.join(".run.json.partial");
        fs::write(&beside, config.to_string()).ok()?;
        fs::rename(beside, folder.join("run.json")).ok()?;
        Some(ScriptRecorder { out: BufWriter::new(file), flushed: Instant::now() })
    }
}

impl Observer for ScriptRecorder {
    fn record(&mut self, record: Record) {
        // A full disk ends the records, not the training.
        let _ = write_line(&mut self.out, &record);
        if self.flushed.elapsed() >= FLUSH_INTERVAL {
            let _ = self.out.flush();
            self.flushed = Instant::now();
        }
    }

    fn is_surveyed(&self) -> bool {
        true
    }
}
