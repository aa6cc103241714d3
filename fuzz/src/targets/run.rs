//! Run files, settings, jobs, records, checkpoints.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use quelea_core::algorithms::ALGORITHMS;
use quelea_core::registry::Registry;
use quelea_record::RankCheckpoint;
use quelea_run::checkpoint::{Manifest, part, read};
use quelea_run::config::source::{self, apply, parse, setting};
use quelea_run::config::{Config, Length};
use quelea_run::files::part_note::{PartNote, RunId};
use quelea_run::files::read_records::read_line;
use quelea_run::prepared::PreparedRun;
use sha2::{Digest, Sha256};

use crate::target::{FuzzTarget, InputFolder, InputFormat, as_it_is};

/// The targets of `quelea-run`.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "run-file",
        function: "quelea_run::config::source::parse, Config::read, PreparedRun::new",
        seeds: run_files,
        memory_bytes: 32 << 20,
        share: 2,
        ..text(read_run_file)
    },
    FuzzTarget {
        name: "setting",
        function: "quelea_run::config::source::{setting, apply}",
        seeds: settings,
        memory_bytes: 8 << 20,
        share: 1,
        ..text(read_setting)
    },
    FuzzTarget {
        name: "summary",
        function: "quelea_run::config::source::read, of a summary.json",
        seeds: || vec![format!("{{\"config\":{}}}", job()).into_bytes()],
        memory_bytes: 16 << 20,
        share: 2,
        ..text(|bytes, scratch| {
            let table = source::read(&scratch.write("summary.json", bytes));
            let _ = table.and_then(|table| Config::read(table, &[], None));
        })
    },
    FuzzTarget {
        name: "job",
        function: "quelea_run::prepared::PreparedRun::from_job",
        seeds: || vec![job().into_bytes()],
        memory_bytes: 32 << 20,
        share: 2,
        ..text(|bytes, _| {
            let Ok(table) = serde_json::from_slice::<toml::Table>(bytes) else { return };
            if Config::read(table, &[], None).is_ok_and(|config| is_small(&config)) {
                let _ = PreparedRun::from_job(&Registry::builtin(), bytes);
            }
        })
    },
    FuzzTarget {
        name: "run-part",
        function: "quelea_run::files::part_note::{PartNote::read, RunId::split_job}",
        seeds: part_notes,
        memory_bytes: 4 << 20,
        share: 1,
        ..text(|bytes, scratch| {
            let note = scratch.write("part.json", bytes);
            let _ = PartNote::read(note.parent().expect("a file has a folder"));
            let (_, job) = RunId::split_job(bytes);
            assert!(bytes.ends_with(job));
        })
    },
    FuzzTarget {
        name: "record-line",
        function: "quelea_run::files::read_records::read_line",
        seeds: record_lines,
        memory_bytes: 4 << 20,
        share: 8,
        ..text(|bytes, _| {
            String::from_utf8_lossy(bytes).lines().for_each(|line| drop(read_line(line)));
        })
    },
    FuzzTarget {
        name: "checkpoint-part",
        function: "quelea_run::checkpoint::part::from_bytes (safetensors)",
        format: InputFormat::Binary,
        seeds: || vec![good().part.clone(), b"\x02\0\0\0\0\0\0\0{}".to_vec()],
        memory_bytes: 4 << 20,
        share: 8,
        ..text(|bytes, _| {
            if let Ok(part) = part::from_bytes(bytes) {
                let again = part::to_bytes(&part).expect("what was read can be written");
                assert!(part::from_bytes(&again).is_ok());
            }
        })
    },
    FuzzTarget {
        name: "checkpoint",
        function: "quelea_run::checkpoint::read::open, PreparedRun::resume_from",
        seeds: checkpoint_seeds,
        memory_bytes: 16 << 20,
        share: 1,
        ..text(read_checkpoint)
    },
];

/// What readers of text have in common.
const fn text(read: fn(&[u8], &InputFolder)) -> FuzzTarget {
    FuzzTarget {
        name: "",
        function: "",
        format: InputFormat::Text,
        seeds: Vec::new,
        repair: as_it_is,
        read,
        share: 1,
        memory_bytes: 1 << 20,
    }
}

/// A note of a part, and the beginning of a job that names its run.
fn part_notes() -> Vec<Vec<u8>> {
    let id = "0123456789abcdef0123456789abcdef";
    let note = format!(
        "{{\"format\":1,\"run\":\"{id}\",\"controller\":2,\"predecessor\":{{\"controller\":null}}}}"
    );
    vec![note.into_bytes(), format!("run {id}\n{{}}").into_bytes()]
}

/// A run of every algorithm, and one with every table.
fn run_files() -> Vec<Vec<u8>> {
    let name = |entry: &quelea_core::algorithms::Entry| {
        let name = entry.meta.name;
        format!(
            "workers = 4\nsteps = 50\n[algorithm]\nname = \"{name}\"\n[task]\nname = \"quadratic\"\n"
        )
    };
    let mut files: Vec<String> = ALGORITHMS.iter().map(name).collect();
    files.push(WHOLE.to_string());
    files.push(
        "epochs = 2.5\n[task]\nname = \"logistic\"\nbatch = 8\npartition = \"dirichlet\"\n"
            .to_string(),
    );
    files.into_iter().map(String::into_bytes).collect()
}

const WHOLE: &str = "\
seed = 7
workers = 4
steps = 20
evaluations = 2
evaluate_workers = true
plots = false

[algorithm]
name = \"d-psgd\"

[topology]
name = \"ring\"

[optimizer]
name = \"sgd\"
lr = 0.1
momentum = 0.9

[optimizer.schedule]
name = \"cosine\"

[codec]
name = \"f32\"

[buckets]
size_mb = 0.5

[checkpoint]
every = 10
keep = 3

[membership]
on_loss = \"stop\"

[trust]
poison = \"drop\"

[task]
name = \"quadratic\"
dimensions = 10
curvature = [[1], [3], [1], [2]]
target = [[1], [-2], [0.5], [3]]

[cluster]
bandwidth_gbps = 10
slow = { \"3\" = 10.0 }

[cluster.faults]
crashes = [{ rank = 1, at_ms = 1500 }]
pauses = [{ rank = 2, from_ms = 100, until_ms = 900 }]
partitions = [{ rank = 0, from_ms = 100, until_ms = 200 }]
rules = [{ from = 3, to = 0, share = 0.1, verdict = \"drop\" }, { verdict = \"delay\", delay_ms = 5 }]
attacks = [{ rank = 3, kind = \"alie\" }]
";

/// Small enough to be prepared thousands of times; whether a run fits into the machine is checked elsewhere.
fn is_small(config: &Config) -> bool {
    let options = &config.task.values.options;
    let is_quadratic = config.task.entry.meta.name == "quadratic";
    let length = matches!(config.length, Length::Steps(steps) if steps < 1 << 40);
    let servers = config.cluster.options.whole("servers");
    is_quadratic
        && length
        && config.workers <= 16
        && servers <= 16
        && options.whole("dimensions") <= 1000
}

fn read_run_file(bytes: &[u8], _: &InputFolder) {
    let Ok(table) = parse(&String::from_utf8_lossy(bytes)) else { return };
    let Ok(config) = Config::read(table, &[], None) else { return };
    if is_small(&config) {
        let _ = PreparedRun::new(config);
    }
}

fn settings() -> Vec<Vec<u8>> {
    let texts =
        ["optimizer.lr=0.1", "cluster.slow.\"3\"=10", "task.start=[1, 2]", "algorithm.name=d-psgd"];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn read_setting(bytes: &[u8], _: &InputFolder) {
    let Ok(setting) = setting(&String::from_utf8_lossy(bytes)) else { return };
    let mut table = parse("workers = 4\n[optimizer]\nlr = 0.1\n").expect("good TOML");
    if apply(&mut table, &setting).is_ok() {
        let _ = Config::read(table, &[setting], None);
    }
}

/// The configuration of a small run as one process tells it another.
fn job() -> String {
    let config = Config::read(parse(SMALL).expect("good TOML"), &[], None).expect("a good run");
    config.resolved().to_string()
}

const SMALL: &str = "\
workers = 2
steps = 50
[algorithm]
name = \"allreduce\"
[optimizer]
momentum = 0.9
[task]
name = \"quadratic\"
dimensions = 4
";

fn record_lines() -> Vec<Vec<u8>> {
    let lines = [
        r#"{"t":0.5,"rank":1,"step":2,"kind":"step","loss":0.1,"samples":7,"compute":1e-9,"exposed":2.5,"waiting":0.0}"#,
        r#"{"t":0.5,"rank":1,"step":2,"kind":"evaluation","loss":1.0,"accuracy":null,"consensus":0.25}"#,
        r#"{"t":0.5,"rank":0,"step":2,"kind":"account","awaiting":[{"rank":1,"what":"a \"chunk\""}],"links":[[1,2,3,4,5]]}"#,
        r#"{"t":0.5,"rank":0,"step":2,"kind":"transfer","to":1,"bytes":80,"seconds":0.5}"#,
        r#"{"t":0.5,"rank":0,"step":2,"kind":"checkpoint","failure":"disk"}"#,
        r#"{"t":0.5,"rank":0,"step":2,"kind":"staleness","updates":3}"#,
    ];
    let mut seeds: Vec<Vec<u8>> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
    seeds.push(lines.join("\n").into_bytes());
    seeds
}

/// A good checkpoint of a small run.
struct GoodCheckpoint {
    manifest: Vec<u8>,
    part: Vec<u8>,
}

fn prepared() -> PreparedRun {
    let config = Config::read(parse(SMALL).expect("good TOML"), &[], None).expect("a good run");
    PreparedRun::new(config).expect("a good run")
}

fn good() -> &'static GoodCheckpoint {
    static GOOD: OnceLock<GoodCheckpoint> = OnceLock::new();
    GOOD.get_or_init(|| {
        let manifest = Manifest { step: 3, clock_seconds: 1.5, ..Manifest::of(&prepared(), None) };
        let mut saved = RankCheckpoint::default();
        saved.state.numbers.insert("step".to_string(), 3);
        saved.state.numbers.insert("optimized.0".to_string(), 3);
        saved.state.vectors.insert("params".to_string(), vec![1.0; 4]);
        saved.state.vectors.insert("optimizer.0".to_string(), vec![0.5; 4]);
        GoodCheckpoint {
            manifest: serde_json::to_vec_pretty(&manifest).expect("JSON"),
            part: part::to_bytes(&saved).expect("tensors"),
        }
    })
}

const FILES: [&str; 3] = ["manifest.json", "rank-0.safetensors", "rank-1.safetensors"];

/// Which file is replaced, then the file.
fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let GoodCheckpoint { manifest, part } = good();
    let mut lost: serde_json::Value = serde_json::from_slice(manifest).expect("JSON");
    let departed = serde_json::json!([{ "rank": 1, "steps": 2, "left": false }]);
    lost["changes"] =
        serde_json::json!([{ "number": 1, "from_step": 3, "departed": departed, "joined": [] }]);
    let lost = lost.to_string().into_bytes();
    let with = |place: u8, bytes: &[u8]| [&[place], bytes].concat();
    vec![with(0, manifest), with(0, &lost), with(1, part), with(2, part)]
}

/// The sums are always right: those of a file that was changed with them say nothing.
fn read_checkpoint(bytes: &[u8], scratch: &InputFolder) {
    let folder = scratch.path().join("checkpoints/step-3");
    if fs::create_dir_all(&folder).is_err() {
        return;
    }
    let GoodCheckpoint { manifest, part } = good();
    let files = [(FILES[0], manifest.clone()), (FILES[1], part.clone()), (FILES[2], part.clone())];
    let placed: Vec<(String, Vec<u8>)> =
        files.map(|(name, bytes)| (format!("checkpoints/step-3/{name}"), bytes)).to_vec();
    let named: Vec<(&str, Vec<u8>)> =
        placed.iter().map(|(name, bytes)| (&**name, bytes.clone())).collect();
    scratch.write_set(&named, bytes);
    write_sums(&folder);
    if let Ok(checkpoint) = read::open(scratch.path()) {
        let _ = checkpoint.config(&[], None);
        let _ = prepared().resume_from(&checkpoint);
        let _ = prepared().resume_from(&checkpoint.refilled(true));
    }
}

fn write_sums(folder: &Path) {
    let line = |name: &str| {
        let digest = Sha256::digest(fs::read(folder.join(name)).unwrap_or_default());
        let sum: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{sum}  {name}\n")
    };
    let sums: String = FILES.iter().map(|name| line(name)).collect();
    fs::write(folder.join("SHA256SUMS"), sums)
        .expect("a file can be written in a temporary folder");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_with_every_table_is_a_run_file_that_is_taken() {
        let config = parse(WHOLE)
            .and_then(|table| Config::read(table, &[], None).map_err(|error| error.to_string()));
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        assert!(is_small(&config), "else it would not be prepared");
        PreparedRun::new(config).unwrap_or_else(|error| panic!("{error}"));
    }
}
