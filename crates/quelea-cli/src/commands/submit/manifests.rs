//! Manifests of a run in Kubernetes, in four forms, with the files beside them.

use serde_json::{Value, json};

use crate::yaml;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ManifestForm {
    /// An indexed Job.
    Job,
    /// A coordinator and a StatefulSet of workers.
    Elastic,
    /// A JobSet.
    #[value(name = "jobset")]
    JobSet,
    /// A TrainJob of Kubeflow Trainer, with its runtime.
    #[value(name = "trainjob")]
    TrainJob,
}

/// The port at which the processes meet.
const PORT: u16 = 29_470;
/// The port at which a pod says how it is.
const HEALTH_PORT: u16 = 29_471;
/// Where the run file is in a pod.
const RUN_FILE: &str = "/etc/quelea/run.toml";
/// Where the run's files are.
const DATA: &str = "/data";

/// A run in Kubernetes.
#[derive(Clone, Debug)]
pub struct KubernetesRun {
    /// What everything is named after.
    pub name: String,
    /// The namespace, if it is not the current one.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// Pods that train.
    pub workers: u32,
    /// Pods that wait.
    pub spares: u32,
    /// GPUs of each pod.
    pub gpus: Option<u32>,
    /// Processors of each pod.
    pub cpu: String,
    /// Memory of each pod.
    pub memory: String,
    /// A claim that is there.
    pub claim: Option<String>,
    /// What is written.
    pub form: ManifestForm,
    /// The text of the run file.
    pub run_file: String,
}

impl KubernetesRun {
    /// The name of the secret that is to be there.
    pub fn secret(&self) -> String {
        format!("{}-secret", self.name)
    }

    fn claim_name(&self) -> String {
        self.claim.clone().unwrap_or_else(|| format!("{}-data", self.name))
    }

    /// All files of the folder.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let manifests = self.manifests();
        let mut resources: Vec<&str> = manifests.iter().map(|(name, _)| *name).collect();
        resources.sort_unstable();
        let mut kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": resources,
            "configMapGenerator": [{ "name": format!("{}-run", self.name), "files": ["run.toml"] }],
            "generatorOptions": { "disableNameSuffixHash": true },
        });
        if let Some(namespace) = &self.namespace {
            kustomization["namespace"] = json!(namespace);
        }
        let mut files = vec![
            ("kustomization.yaml", yaml::document(&kustomization)),
            ("run.toml", self.run_file.clone()),
            ("Dockerfile", DOCKERFILE.to_string()),
        ];
        files.extend(manifests.into_iter().map(|(name, value)| (name, yaml::document(&value))));
        files
    }

    fn manifests(&self) -> Vec<(&'static str, Value)> {
        let mut all = match self.form {
            ManifestForm::Job => vec![("service.yaml", self.service()), ("job.yaml", self.job())],
            ManifestForm::Elastic => vec![
                ("service.yaml", self.service()),
                ("coordinator.yaml", self.coordinator()),
                ("workers.yaml", self.stateful_set()),
            ],
            ManifestForm::JobSet => vec![("jobset.yaml", self.job_set())],
            ManifestForm::TrainJob => {
                vec![("runtime.yaml", self.runtime()), ("trainjob.yaml", self.train_job())]
            }
        };
        if self.claim.is_none() {
            all.push(("claim.yaml", self.volume_claim()));
        }
        all
    }

    fn metadata(&self, name: &str) -> Value {
        json!({ "name": name, "labels": self.labels() })
    }

    fn labels(&self) -> Value {
        json!({ "app.kubernetes.io/name": "quelea", "app.kubernetes.io/instance": self.name })
    }

    /// Names for the pods, before they are ready: they meet in order to become it.
    fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata(&self.name),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": self.labels(),
                "ports": [{ "name": "rendezvous", "port": PORT }],
            },
        })
    }

    fn volume_claim(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": self.metadata(&self.claim_name()),
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": { "requests": { "storage": "50Gi" } },
            },
        })
    }

    fn job(&self) -> Value {
        let meeting = format!("{0}-0.{0}:{PORT}", self.name);
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self.metadata(&self.name),
            "spec": self.job_spec(&self.name, &meeting),
        })
    }

    /// An indexed Job whose pods find each other under a subdomain. A pod that was evicted does not count as a
    /// failure; a request that is wrong fails the whole job.
    fn job_spec(&self, subdomain: &str, meeting: &str) -> Value {
        let pods = self.workers + self.spares;
        let mut env = vec![
            json!({ "name": "QUELEA_WORLD_SIZE", "value": pods.to_string() }),
            json!({ "name": "QUELEA_RENDEZVOUS", "value": meeting }),
        ];
        if self.spares > 0 {
            env.push(json!({ "name": "QUELEA_SPARES", "value": self.spares.to_string() }));
        }
        let mut pod = self.pod(train_command(), env);
        pod["subdomain"] = json!(subdomain);
        pod["restartPolicy"] = json!("Never");
        json!({
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "backoffLimitPerIndex": 10,
            "podFailurePolicy": { "rules": [
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
                { "action": "FailJob", "onExitCodes": {
                    "containerName": "quelea", "operator": "In", "values": [2],
                } },
            ] },
            "template": { "metadata": { "labels": self.labels() }, "spec": pod },
        })
    }

    /// What keeps the run while workers come and go.
    fn coordinator(&self) -> Value {
        let name = format!("{}-coordinator", self.name);
        let mut pod = self.pod(serve_command(), Vec::new());
        pod["hostname"] = json!("coordinator");
        pod["subdomain"] = json!(self.name);
        pod["restartPolicy"] = json!("OnFailure");
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self.metadata(&name),
            "spec": {
                "backoffLimit": 10,
                "template": { "metadata": { "labels": self.labels() }, "spec": pod },
            },
        })
    }

    fn stateful_set(&self) -> Value {
        let mut labels = self.labels();
        labels["app.kubernetes.io/component"] = json!("worker");
        let place = format!("coordinator.{}:{PORT}", self.name);
        let command = ["quelea", "join", &place, "--wait", "600"];
        let mut pod = self.pod(command.map(str::to_string).to_vec(), Vec::new());
        // The model and the records are the coordinator's.
        pod["volumes"] = json!([]);
        pod["containers"][0]["volumeMounts"] = json!([]);
        json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": self.metadata(&self.name),
            "spec": {
                "replicas": self.workers,
                "serviceName": self.name,
                "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": pod },
            },
        })
    }

    fn job_set(&self) -> Value {
        let meeting = format!("{0}-workers-0-0.{0}:{PORT}", self.name);
        json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": self.metadata(&self.name),
            "spec": {
                "failurePolicy": { "maxRestarts": 10 },
                "network": {
                    "enableDNSHostnames": true,
                    "publishNotReadyAddresses": true,
                    "subdomain": self.name,
                },
                "replicatedJobs": [{
                    "name": "workers",
                    "replicas": 1,
                    "template": { "spec": self.job_spec(&self.name, &meeting) },
                }],
            },
        })
    }

    /// The policy for PyTorch gives every pod `PET_NNODES`, `PET_NODE_RANK` and `PET_MASTER_ADDR`, whatever runs in it.
    fn runtime(&self) -> Value {
        let mut pod = self.pod(train_command(), Vec::new());
        pod["containers"][0]["name"] = json!("node");
        pod["restartPolicy"] = json!("Never");
        json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainingRuntime",
            "metadata": {
                "name": self.name,
                "labels": { "trainer.kubeflow.org/framework": "torch" },
            },
            "spec": {
                "mlPolicy": { "numNodes": self.workers, "torch": {} },
                "template": { "spec": { "replicatedJobs": [{
                    "name": "node",
                    "template": {
                        "metadata": { "labels": { "trainer.kubeflow.org/trainjob-ancestor-step": "trainer" } },
                        "spec": { "template": { "spec": pod } },
                    },
                }] } },
            },
        })
    }

    fn train_job(&self) -> Value {
        json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": self.metadata(&self.name),
            "spec": {
                "runtimeRef": { "apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": self.name },
                "trainer": { "numNodes": self.workers, "numProcPerNode": 1 },
            },
        })
    }

    /// A pod of one container, without what depends on the form.
    fn pod(&self, command: Vec<String>, more: Vec<Value>) -> Value {
        let secret = json!({ "secretKeyRef": { "name": self.secret(), "key": "secret" } });
        let mut env = vec![
            json!({ "name": "QUELEA_SECRET", "valueFrom": secret }),
            json!({ "name": "OUT", "value": format!("{DATA}/{}", self.name) }),
            json!({ "name": "QUELEA_HEALTH", "value": HEALTH_PORT.to_string() }),
        ];
        env.extend(more);
        let mut amounts = json!({ "cpu": self.cpu, "memory": self.memory });
        if let Some(gpus) = self.gpus {
            amounts["nvidia.com/gpu"] = json!(gpus.to_string());
        }
        json!({
            "terminationGracePeriodSeconds": 120,
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000 },
            "containers": [{
                "name": "quelea",
                "image": self.image,
                "command": command,
                "env": env,
                "ports": [
                    { "name": "rendezvous", "containerPort": PORT },
                    { "name": "health", "containerPort": HEALTH_PORT },
                ],
                // A shell that looks for checkpoints comes first; a process that answers nothing for a minute is
                // replaced.
                "startupProbe": probe("/healthz", 2, 60),
                "livenessProbe": probe("/healthz", 10, 6),
                "readinessProbe": probe("/readyz", 5, 1),
                "resources": { "requests": amounts, "limits": amounts },
                "volumeMounts": [
                    { "name": "run", "mountPath": "/etc/quelea" },
                    { "name": "data", "mountPath": DATA },
                ],
            }],
            "volumes": [
                { "name": "run", "configMap": { "name": format!("{}-run", self.name) } },
                { "name": "data", "persistentVolumeClaim": { "claimName": self.claim_name() } },
            ],
        })
    }
}

fn probe(path: &str, period_seconds: u32, failures: u32) -> Value {
    json!({
        "httpGet": { "path": path, "port": "health" },
        "periodSeconds": period_seconds,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    })
}

/// Rank 0 resumes where it was; the program takes the place of the shell, so that SIGTERM reaches it.
fn train_command() -> Vec<String> {
    command("train", "")
}

fn serve_command() -> Vec<String> {
    command("serve", &format!(" --bind 0.0.0.0:{PORT}"))
}

fn command(name: &str, options: &str) -> Vec<String> {
    let script = format!(
        "if [ -e \"$OUT/summary.json\" ]; then exit 0; fi\n\
         if ls -d \"$OUT\"/checkpoints/step-* > /dev/null 2>&1; then exec quelea {name} --resume \"$OUT\"{options}; fi\n\
         exec quelea {name} {RUN_FILE} --out \"$OUT\" --force{options}\n"
    );
    vec!["/bin/sh".to_string(), "-c".to_string(), script]
}

/// Built in a copy of the project.
const DOCKERFILE: &str = "\
# Build it in the project's folder: docker build -t quelea:latest -f …/Dockerfile .
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p quelea-cli

FROM debian:bookworm-slim
COPY --from=build /src/target/release/quelea /usr/local/bin/quelea
RUN useradd --uid 1000 --create-home quelea
USER 1000
WORKDIR /home/quelea
ENTRYPOINT [\"quelea\"]
CMD [\"--help\"]
";
