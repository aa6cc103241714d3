//! Jobs in a real Slurm cluster of several nodes on this machine: start, loss, time limit, requeue, resume.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::path::Path;

use common::Lab;
use serde_json::Value;

const RUN: &str = "\
steps = 200
[task]
name = \"quadratic\"
compute_ms = 40
[algorithm]
name = \"d-psgd\"
[checkpoint]
every = 10
";

fn lab(nodes: &str) -> Option<Lab> {
    let needed = ["slurmctld", "slurmd", "sbatch", "srun", "munged", "unshare", "ip"];
    let mut lab = Lab::start("Slurm", include_str!("slurm/lab.sh"), &[nodes], &needed)?;
    lab.write("run.toml", RUN);
    let quelea = env!("CARGO_BIN_EXE_quelea");
    lab.good(&format!("cd {}; quelea() {{ {quelea} \"$@\"; }}", lab.path("").display()));
    Some(lab)
}

/// Submits a job that runs this build of the program; its number.
fn submit(lab: &mut Lab, words: &str) -> String {
    let program = env!("CARGO_BIN_EXE_quelea");
    let command =
        format!("quelea submit slurm run.toml {words} --program {program} --now 2>/dev/null");
    lab.good(&command).trim().to_string()
}

fn await_file(lab: &mut Lab, name: &str, job: &str) {
    let shown = format!("squeue; cat *-{job}.out; tail -n 20 log/controller.log");
    lab.wait(&format!("[ -e {name} ]"), &shown);
}

/// Older ones are deleted, so that any will do.
fn await_checkpoint(lab: &mut Lab, run: &str, job: &str) {
    let shown = format!("squeue; cat *-{job}.out; tail -n 20 log/controller.log");
    lab.wait(&format!("compgen -G '{run}/checkpoints/step-*'"), &shown);
}

fn summary(folder: &Path) -> Value {
    let text = fs::read(folder.join("summary.json")).expect("a summary");
    serde_json::from_slice(&text).expect("JSON")
}

/// One cluster for all: it takes longer to set up than a job takes.
#[test]
fn jobs_survive_lost_nodes_and_time_limits() {
    let Some(mut lab) = lab("8") else { return };
    let saved = submit(&mut lab, "--nodes 3 --time 10 --name saved");
    save(&mut lab, "saved", &saved);
    // While the job waits to be started again: what the README prints.
    let spare = "--nodes 4 --spares 1 --time 4:00:00 --name spare --set algorithm.name=aladdin";
    let replaced = submit(&mut lab, spare);
    replace_a_node(&mut lab, &replaced);
    let chained = submit(&mut lab, "--nodes 2 --time 10 --name chained --option=--no-requeue");
    save(&mut lab, "chained", &chained);
    let alone = submit(&mut lab, "--nodes 3 --name alone");
    continue_without_a_node(&mut lab, &alone);
    resumes(&mut lab, &saved);
    another_job_resumes(&mut lab, &chained);
    tasks_of_a_heterogeneous_job_are_one_run(&mut lab);
    let first = submit(&mut lab, "--nodes 3 --name first");
    the_node_of_the_script_is_lost(&mut lab, &first);
    names_that_do_not_resolve_are_said_at_once(&mut lab);
    for words in ["--nodes 2", "--nodes 4 --spares 1 --time 4:00:00 --save-before 300 --name big"] {
        let script = format!("quelea submit slurm run.toml {words} --force --script t.sbatch");
        lab.good(&format!(
            "{script} --set optimizer.lr=0.1 --before true && sbatch --test-only t.sbatch"
        ));
    }
    if std::env::var_os("QUELEA_SLURM").is_some_and(|value| value == "full") {
        the_real_time_limit(&mut lab);
    }
}

/// The signal that Slurm sends before the limit, without waiting for it.
fn save(lab: &mut Lab, name: &str, job: &str) {
    await_checkpoint(lab, &format!("runs/{name}"), job);
    lab.good(&format!("scancel --signal=USR1 --batch {job}"));
}

/// The model of a run of `workers` that nothing has happened to.
fn undisturbed(lab: &mut Lab, workers: u32) -> Vec<u8> {
    let settings = format!("--force --set workers={workers} --set task.compute_ms=0");
    lab.good(&format!("quelea train run.toml {settings} --threads -q --out whole-{workers}"));
    model(lab, &format!("whole-{workers}"))
}

fn model(lab: &Lab, run: &str) -> Vec<u8> {
    fs::read(lab.path(run).join("final.safetensors")).expect("a model")
}

/// Where a job may not be requeued, it submits another that depends on it.
fn another_job_resumes(lab: &mut Lab, job: &str) {
    await_file(lab, "runs/chained/summary.json", job);
    let first = fs::read_to_string(lab.path(&format!("chained-{job}.out"))).expect("its output");
    assert!(first.contains("quelea: saved step"), "{first}");
    let others = lab.good(&format!("ls chained-*.out | grep -v chained-{job}.out"));
    assert_eq!(others.lines().count(), 1, "one job more: {others}");
    let second = fs::read_to_string(lab.path(others.trim())).expect("its output");
    assert!(second.contains("quelea: resuming from step"), "{second}");
    let whole = undisturbed(lab, 2);
    assert_eq!(model(lab, "runs/chained"), whole, "the change of job cannot be seen in the model");
}

/// Without a spare the others continue, and the job ends well.
fn continue_without_a_node(lab: &mut Lab, job: &str) {
    await_checkpoint(lab, "runs/alone", job);
    let nodes = lab.good(&format!("scontrol show hostnames $(squeue -h -j {job} -o %N)"));
    lab.good(&format!("kill_node {}", nodes.lines().nth(1).expect("three nodes")));
    await_file(lab, "runs/alone/summary.json", job);
    let told = fs::read_to_string(lab.path(&format!("alone-{job}.out"))).expect("its output");
    assert!(told.contains("worker 1 lost after"), "{told}");
    let steps = summary(&lab.path("runs/alone"))["steps"].as_u64().expect("a number");
    assert!((400..600).contains(&steps), "two workers did all theirs, the third did not: {steps}");
}

fn resumes(lab: &mut Lab, job: &str) {
    await_file(lab, "runs/saved/summary.json", job);
    let told = fs::read_to_string(lab.path(&format!("saved-{job}.out"))).expect("its output");
    assert!(told.contains("quelea: resuming from step"), "{told}");
    let shown = lab.good(&format!("scontrol show job {job}"));
    assert!(shown.contains("Restarts=1"), "{shown}");
    assert!(summary(&lab.path("runs/saved"))["resumed_from_step"].as_u64() >= Some(10));
    let whole = undisturbed(lab, 3);
    assert_eq!(model(lab, "runs/saved"), whole, "the interruption cannot be seen in the model");
}

fn replace_a_node(lab: &mut Lab, job: &str) {
    await_checkpoint(lab, "runs/spare", job);
    let nodes = lab.good(&format!("scontrol show hostnames $(squeue -h -j {job} -o %N)"));
    let second = nodes.lines().nth(1).expect("five nodes").to_string();
    lab.good(&format!("kill_node {second}"));
    await_file(lab, "runs/spare/summary.json", job);
    let told = fs::read_to_string(lab.path(&format!("spare-{job}.out"))).expect("its output");
    assert!(told.contains("worker 1 lost after"), "{told}");
    assert!(told.contains("worker 1 joined after"), "{told}");
    lab.wait(&format!("! squeue -h -j {job} -t running 2>/dev/null | grep -q ."), "squeue");
    let state = lab.good(&format!("scontrol show job {job}"));
    // Slurm waits for the node that was killed before it calls the job completed.
    let is_good = state.contains("JobState=COMPLET") && state.contains("ExitCode=0:0");
    assert!(is_good, "{state}\n{told}");
}

/// Slurm keeps a job whose script is lost; a watcher on another node has it requeued.
fn the_node_of_the_script_is_lost(lab: &mut Lab, job: &str) {
    await_checkpoint(lab, "runs/first", job);
    let nodes = lab.good(&format!("scontrol show hostnames $(squeue -h -j {job} -o %N)"));
    lab.good(&format!("kill_node {}", nodes.lines().next().expect("three nodes")));
    await_file(lab, "runs/first/summary.json", job);
    let shown = lab.good(&format!("scontrol show job {job}"));
    assert!(shown.contains("Restarts=1"), "{shown}");
    let whole = undisturbed(lab, 3);
    assert_eq!(model(lab, "runs/first"), whole, "the loss cannot be seen in the model");
}

fn tasks_of_a_heterogeneous_job_are_one_run(lab: &mut Lab) {
    let program = env!("CARGO_BIN_EXE_quelea");
    let tasks = format!("srun -N1 -n1 : -N1 -n1 {program} train run.toml --out mixed");
    lab.good(&format!("QUELEA_INSECURE=1 timeout 100 {tasks}"));
    let whole = undisturbed(lab, 2);
    assert_eq!(model(lab, "mixed"), whole);
}

fn names_that_do_not_resolve_are_said_at_once(lab: &mut Lab) {
    lab.good("cp hosts kept; grep -v ' n' kept > hosts");
    let program = env!("CARGO_BIN_EXE_quelea");
    let (told, status) = lab.run(&format!(
        "QUELEA_INSECURE=1 timeout 50 srun -N 2 -n 2 {program} train run.toml --out none"
    ));
    lab.good("cat kept > hosts");
    assert_eq!(status, 2, "{told}");
    assert!(told.contains("Slurm: the name of the first node, n"), "{told}");
    assert!(told.contains("does not resolve on this node"), "{told}");
}

/// A minute is the shortest limit that Slurm has.
fn the_real_time_limit(lab: &mut Lab) {
    let words = "--nodes 2 --time 1 --save-before 20 --name limit --set steps=1500";
    let job = submit(lab, words);
    await_file(lab, "runs/limit/summary.json", &job);
    lab.good("quelea train run.toml --set workers=2 --set steps=1500 --set task.compute_ms=0 --threads -q --out limited");
    assert_eq!(model(lab, "runs/limit"), model(lab, "limited"));
    let told = fs::read_to_string(lab.path(&format!("limit-{job}.out"))).expect("its output");
    assert!(told.contains("the time limit is near; saving the run"), "{told}");
}
