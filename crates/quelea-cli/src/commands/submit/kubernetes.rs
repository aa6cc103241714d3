//! `quelea submit kubernetes`: a folder that `kubectl apply -k` takes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use anyhow::Context;
use quelea_core::registry::Registry;
use quelea_run::error::RequestError;

use super::manifests::{KubernetesRun, ManifestForm};
use super::{check_name, checked_config, job_name};
use crate::request::RunArgs;
use crate::text::mention;

const EXAMPLES: &str = "\
Examples:
  quelea submit kubernetes run.toml --workers 8 --image registry.example/quelea:1
                                                     writes run-kubernetes/
  kubectl create secret generic run-secret --from-literal=secret=$(openssl rand -hex 32)
  kubectl apply -k run-kubernetes                   (--now does it)
  quelea submit kubernetes run.toml --workers 8 --spares 1 --claim scratch --image …
  quelea submit kubernetes run.toml --workers 4 --form elastic --image …
                                                     a StatefulSet: kubectl scale statefulset run --replicas 6

--form job       an indexed Job; a pod that is lost is replaced and joins the running run
       elastic   a coordinator and a StatefulSet of workers, which can be scaled while the run lasts
       jobset    a JobSet, which starts all again when the coordinator is lost
       trainjob  a TrainJob of Kubeflow Trainer, with its runtime

The folder has a Dockerfile too. Where the coordinator is lost the run resumes from its last checkpoint, in the
claim.";

/// Write manifests for Kubernetes, and apply them with --now
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct KubernetesArgs {
    #[command(flatten)]
    run: RunArgs,

    /// How many workers, one pod each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    workers: u32,

    /// How many pods more wait to take the place of lost workers (job and jobset)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    spares: u32,

    /// The image that the pods run
    #[arg(long, value_name = "IMAGE", default_value = "quelea:latest")]
    image: String,

    /// What is written
    #[arg(long, value_name = "FORM", value_enum, default_value_t = ManifestForm::Job)]
    form: ManifestForm,

    /// The job's name; without it, that of the run file
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The namespace; without it, the current one
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// GPUs of each pod
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: Option<u32>,

    /// Processors of each pod, as Kubernetes writes it
    #[arg(long, value_name = "CPU", default_value = "2")]
    cpu: String,

    /// Memory of each pod, as Kubernetes writes it
    #[arg(long, value_name = "MEMORY", default_value = "4Gi")]
    memory: String,

    /// A volume claim for the run's files, which all pods can use; without it, one is made
    #[arg(long, value_name = "NAME")]
    claim: Option<String>,

    /// The folder that is written; without it, NAME-kubernetes
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    /// Replace what is in the folder
    #[arg(long)]
    force: bool,

    /// Apply the folder too, with kubectl
    #[arg(long)]
    now: bool,
}

/// Writes the folder.
pub fn run(registry: &Registry, args: &KubernetesArgs) -> anyhow::Result<()> {
    let (workers, spares) = (args.workers as usize, args.spares as usize);
    checked_config(registry, &args.run, workers, spares)?;
    if spares > 0 && !matches!(args.form, ManifestForm::Job | ManifestForm::JobSet) {
        let problem = "only a job and a jobset have spares; a StatefulSet and a TrainJob replace pods themselves";
        return Err(RequestError::field("--spares", spares, problem).into());
    }
    let name = job_name(args.name.as_deref(), args.run.file.as_deref());
    check_name("--name", &name)?;
    if let Some(namespace) = &args.namespace {
        check_name("--namespace", namespace)?;
    }
    if let Some(claim) = &args.claim {
        check_name("--claim", claim)?;
    }
    check_quantity("--cpu", &args.cpu)?;
    check_quantity("--memory", &args.memory)?;
    check_image(&args.image)?;
    let mut table = args.run.merged(registry)?;
    // A coordinator knows the number from its file, others from their launcher.
    table.insert("workers".to_string(), i64::from(args.workers).into());
    let asked = KubernetesRun {
        run_file: table.to_string(),
        namespace: args.namespace.clone(),
        image: args.image.clone(),
        workers: args.workers,
        spares: args.spares,
        gpus: args.gpus,
        cpu: args.cpu.clone(),
        memory: args.memory.clone(),
        claim: args.claim.clone(),
        form: args.form,
        name,
    };
    let folder =
        args.to.clone().unwrap_or_else(|| PathBuf::from(format!("{}-kubernetes", asked.name)));
    write(&folder, &asked, args.force || args.now)?;
    let (shown, secret) = (folder.display(), asked.secret());
    mention(&format!(
        "wrote {shown}; make a secret once, then apply it:\n  kubectl create secret generic {secret} \
         --from-literal=secret=$(openssl rand -hex 32)\n  kubectl apply -k {shown}"
    ));
    if !args.now {
        return Ok(());
    }
    let applied = Process::new("kubectl").args(["apply", "-k"]).arg(&folder).status();
    let applied = applied.context("cannot start kubectl")?;
    anyhow::ensure!(applied.success(), "kubectl refused {shown} ({applied})");
    Ok(())
}

fn write(folder: &Path, asked: &KubernetesRun, replace: bool) -> Result<(), RequestError> {
    if folder.join("kustomization.yaml").exists() && !replace {
        let problem = "is there already; choose another --to, or replace it with --force";
        return Err(RequestError::file(folder, problem));
    }
    let failed = |error| RequestError::file(folder, error);
    fs::create_dir_all(folder).map_err(failed)?;
    for (name, text) in asked.files() {
        fs::write(folder.join(name), text).map_err(failed)?;
    }
    Ok(())
}

/// Refuses what is not an amount as Kubernetes writes it.
fn check_quantity(field: &str, given: &str) -> Result<(), RequestError> {
    let digits = given.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let units = ["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
    let is_number = digits.parse::<f64>().is_ok_and(|number| number > 0.0 && number.is_finite());
    let is_good = is_number && units.contains(&&given[digits.len()..]);
    let problem = "must be an amount as in 4, 500m or 16Gi";
    if is_good { Ok(()) } else { Err(RequestError::field(field, given, problem)) }
}

fn check_image(image: &str) -> Result<(), RequestError> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_./:@".contains(c);
    let problem = "must be the name of an image, as in registry.example/quelea:1";
    if !image.is_empty() && image.chars().all(is_good) {
        return Ok(());
    }
    Err(RequestError::field("--image", image, problem))
}
