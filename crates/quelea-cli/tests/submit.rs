//! What `quelea submit` writes, to the letter, and what it refuses.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const RUN: &str = "steps = 100\n[algorithm]\nname = \"d-psgd\"\n";

fn place() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("run.toml"), RUN).expect("written");
    folder
}

fn submit(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.arg("submit").args(words).current_dir(folder).output().expect("it starts")
}

/// Compares with a file under tests/submit; `QUELEA_RENEW=1` writes it.
fn is_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/submit").join(name);
    if std::env::var_os("QUELEA_RENEW").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, text).expect("written");
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, golden, "{name} has changed; QUELEA_RENEW=1 writes it");
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn scripts_for_slurm_are_as_they_were_and_bash_can_read_them() {
    let place = place();
    let all = "slurm run.toml --nodes 4 --spares 1 --gpus-per-node 8 --time 4:00:00 --save-before 300 --name big \
               --out /shared/big --option=--partition=gpu --option=--account=me --program /opt/quelea";
    let cases = [("least.sbatch", "slurm run.toml --nodes 4"), ("all.sbatch", all)];
    for (name, words) in cases {
        let mut words: Vec<&str> = words.split_whitespace().chain(["--script", "-"]).collect();
        if name == "all.sbatch" {
            words.extend(["--set", "optimizer.lr=0.1", "--before", "module load quelea"]);
        }
        let script = text(&submit(place.path(), &words));
        is_golden(name, &script);
        let path = place.path().join(name);
        fs::write(&path, &script).expect("written");
        let checked = Command::new("bash").arg("-n").arg(&path).output().expect("bash is there");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn a_script_is_written_beside_the_run_and_replaces_nothing() {
    let place = place();
    let written = submit(place.path(), &["slurm", "run.toml", "--nodes", "2"]);
    assert!(written.status.success());
    let told = String::from_utf8_lossy(&written.stderr).into_owned();
    assert_eq!(told.trim(), "wrote run.sbatch; submit it with: sbatch run.sbatch");
    let again = submit(place.path(), &["slurm", "run.toml", "--nodes", "3"]);
    assert_eq!(again.status.code(), Some(2));
    let script = fs::read_to_string(place.path().join("run.sbatch")).expect("the first one");
    assert!(script.contains("#SBATCH --nodes=2\n"), "{script}");
    let forced = submit(place.path(), &["slurm", "run.toml", "--nodes", "3", "--force"]);
    assert!(forced.status.success());
}

#[test]
fn a_wrong_request_names_its_field() {
    let place = place();
    fs::create_dir_all(place.path().join("done")).expect("made");
    fs::write(place.path().join("done/summary.json"), "{}").expect("written");
    let slurm = "slurm run.toml --nodes 4";
    let cases = [
        (format!("{slurm} --set workers=3"), "`workers` = 3: the job starts 4 processes"),
        (format!("{slurm} --set algorithm.name=d-psdg"), "`algorithm.name`"),
        (format!("{slurm} --time soon"), "`--time` = soon: must be MINUTES"),
        (format!("{slurm} --time 2 --save-before 120"), "`--time` = 2: leaves no time to train"),
        (format!("{slurm} --name Big"), "`--name` = Big: must have"),
        (format!("{slurm} --option partition"), "`--option` = partition: must be one option"),
        (format!("{slurm} --out done"), "done: holds a run that has finished"),
        (format!("{slurm} --resume done"), "`--resume` = done: the job resumes by itself"),
        (
            format!("{slurm} --spares 1 --set membership.on_loss=stop"),
            "`membership.on_loss` = \"stop\": spares replace nobody",
        ),
        ("slurm run.toml --nodes 0".to_string(), "--nodes"),
        (
            "kubernetes run.toml --workers 4 --set workers=3".to_string(),
            "`workers` = 3: the job starts 4",
        ),
        (
            "kubernetes run.toml --workers 4 --memory much".to_string(),
            "`--memory` = much: must be an amount",
        ),
        ("kubernetes run.toml --workers 4 --cpu 0".to_string(), "`--cpu` = 0: must be an amount"),
        (
            "kubernetes run.toml --workers 4 --namespace A".to_string(),
            "`--namespace` = A: must have",
        ),
        (
            "kubernetes run.toml --workers 4 --image a;b".to_string(),
            "`--image` = a;b: must be the name",
        ),
        (
            "kubernetes run.toml --workers 4 --form elastic --spares 1".to_string(),
            "`--spares` = 1: only a job",
        ),
        ("kubernetes run.toml --workers 4 --form pods".to_string(), "--form"),
    ];
    for (words, expected) in cases {
        let words: Vec<&str> = words.split_whitespace().collect();
        let refused = submit(place.path(), &words);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains(expected), "{words:?}: {told}");
    }
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, String)> {
    let entries =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let mut all: Vec<(String, String)> =
        entries.map(|path| (name(&path), fs::read_to_string(&path).expect("text"))).collect();
    all.sort();
    all
}

#[test]
fn manifests_for_kubernetes_are_as_they_were_and_fit_its_schema() {
    let place = place();
    let all =
        "--spares 1 --gpus 2 --cpu 8 --memory 64Gi --claim scratch --namespace team --name big";
    let cases = [("job", ""), ("job-all", all), ("elastic", ""), ("jobset", ""), ("trainjob", "")];
    for (name, more) in cases {
        let form = name.trim_end_matches("-all");
        let words = format!(
            "kubernetes run.toml --workers 8 --image registry.example/quelea:1 --form {form} --to {name} {more}"
        );
        let words: Vec<&str> = words.split_whitespace().collect();
        text(&submit(place.path(), &words));
        for (file, text) in files(&place.path().join(name)) {
            is_golden(&format!("{name}/{file}"), &text);
        }
        validate(&place.path().join(name));
        kustomize(&place.path().join(name));
    }
}

/// A Python with Kubernetes' schema and the types of Kubeflow Trainer and JobSet, where `xtask test` has found them.
fn validator() -> Option<Command> {
    let (Ok(python), Ok(path)) =
        (std::env::var("QUELEA_KUBERNETES_PYTHON"), std::env::var("QUELEA_KUBERNETES_PATH"))
    else {
        eprintln!(
            "skipped: manifests are not validated; `cargo xtask test` provides kubernetes-validate"
        );
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/submit/validate.py");
    let mut command = Command::new(python);
    command.env("PYTHONPATH", path).arg(script);
    Some(command)
}

/// Holds manifests against Kubernetes' schema, or against the types of their custom resources.
fn validate(folder: &Path) {
    let Some(mut validator) = validator() else { return };
    let manifests = files(folder).into_iter().filter(|(name, _)| name.ends_with(".yaml"));
    let manifests: Vec<_> = manifests.map(|(name, _)| folder.join(name)).collect();
    let validated = validator.args(&manifests).output().expect("Python is there");
    let told = String::from_utf8_lossy(&validated.stdout);
    assert!(validated.status.success(), "{told}{}", String::from_utf8_lossy(&validated.stderr));
    assert_eq!(told.lines().count(), manifests.len(), "each was looked at: {told}");
}

/// The program that `apply -k` uses builds the folder: every file is there, and every resource has a name.
fn kustomize(folder: &Path) {
    let Ok(built) = Command::new("kubectl").arg("kustomize").arg(folder).output() else {
        return eprintln!("skipped: kubectl is not here");
    };
    let told = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{}: {told}", folder.display());
    let built = String::from_utf8_lossy(&built.stdout);
    assert!(built.contains("kind: ConfigMap"), "{built}");
}

#[test]
fn the_validator_refuses_what_the_types_do_not_know() {
    let Some(mut validator) = validator() else { return };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/submit");
    let place = place();
    let wrongs = [
        ("trainjob/trainjob.yaml", "numNodes: 8", "nodes: 8"),
        ("trainjob/runtime.yaml", "torch: {}", "torch: { numProcPerNode: 1 }"),
        ("trainjob/runtime.yaml", "containerPort: 29470", "containerPort: many"),
        ("jobset/jobset.yaml", "maxRestarts: 10", "restarts: 10"),
        ("jobset/jobset.yaml", "completionMode: Indexed", "mode: Indexed"),
        ("job/job.yaml", "periodSeconds: 10", "period: 10"),
        ("job/kustomization.yaml", "configMapGenerator", "configMaps"),
    ];
    for (name, right, wrong) in wrongs {
        let text = fs::read_to_string(golden.join(name)).expect("a golden file");
        assert!(text.contains(right), "{name} has no {right}");
        let path = place.path().join("wrong.yaml");
        fs::write(&path, text.replacen(right, wrong, 1)).expect("written");
        let program = validator.get_program().to_owned();
        let mut again = Command::new(program);
        validator.get_envs().for_each(|(name, value)| {
            again.env(name, value.expect("it is set"));
        });
        let refused = again.args(validator.get_args()).arg(&path).output().expect("it starts");
        assert_eq!(refused.status.code(), Some(1), "{name} with {wrong}");
    }
    let unknown = validator.arg(golden.join("job/Dockerfile")).output().expect("it starts");
    assert!(!unknown.status.success(), "what is no manifest is refused");
}

/// What the container of a manifest runs: it starts, and starts again where a checkpoint is.
#[cfg(unix)]
#[test]
fn the_command_of_a_pod_starts_resumes_and_leaves_a_finished_run_alone() {
    let place = place();
    text(&submit(place.path(), &["kubernetes", "run.toml", "--workers", "2"]));
    let job = fs::read_to_string(place.path().join("run-kubernetes/job.yaml")).expect("written");
    let block: Vec<&str> = job.lines().skip_while(|line| !line.ends_with("- |")).skip(1).collect();
    let script: String = block
        .iter()
        .take_while(|line| line.starts_with("          "))
        .map(|line| format!("{}\n", line.trim_start()))
        .collect();
    assert!(script.contains("exec quelea train"), "{job}");
    // A program that only says how it was called.
    let fake = place.path().join("quelea");
    fs::write(&fake, "#!/bin/sh\necho \"$@\"\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&fake, mode).expect("permitted");
    let out = place.path().join("out");
    let run = || {
        let path = format!("{}:/usr/bin:/bin", place.path().display());
        let shell = Command::new("/bin/sh")
            .args(["-c", &script])
            .env("OUT", &out)
            .env("PATH", path)
            .output();
        text(&shell.expect("a shell")).trim().to_string()
    };
    let shown = out.display();
    assert_eq!(run(), format!("train /etc/quelea/run.toml --out {shown} --force"));
    fs::create_dir_all(out.join("checkpoints/step-7")).expect("made");
    assert_eq!(run(), format!("train --resume {shown}"));
    fs::write(out.join("summary.json"), "{}").expect("written");
    assert_eq!(run(), "");
}
