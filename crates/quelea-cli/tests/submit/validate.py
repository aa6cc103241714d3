"""Holds manifests against Kubernetes' own schema, strictly, or against the types of their custom resources.

What is not a built-in kind is read by the types that Kubeflow publishes (package kubeflow-trainer-api) and written
again: a field that they do not know is missing then. The jobs and pods inside them are held against the schema.
"""

import sys

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

OWN = {"Job", "Service", "StatefulSet", "PersistentVolumeClaim"}
TYPES = {
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    "JobSet": models.JobsetV1alpha2JobSet,
}
# https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/
KUSTOMIZATION = {"apiVersion", "kind", "resources", "configMapGenerator", "generatorOptions", "namespace"}


def strictly(manifest):
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def same(manifest, kind):
    again = TYPES[kind].from_dict(manifest).to_dict()
    unknown = difference(manifest, again, kind)
    if unknown:
        raise ValueError("unknown to the types: " + ", ".join(unknown))


def difference(given, known, path):
    if isinstance(given, dict) and isinstance(known, dict):
        return [
            found
            for key, value in given.items()
            for found in (difference(value, known[key], f"{path}.{key}") if key in known else [f"{path}.{key}"])
        ]
    if isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        pairs = enumerate(zip(given, known))
        return [found for at, (one, other) in pairs for found in difference(one, other, f"{path}[{at}]")]
    return [] if given == known else [f"{path} = {given!r}"]


def jobs(manifest):
    """The jobs inside a JobSet, or inside the template of one, as manifests of their own."""
    spec = manifest["spec"]
    for job in spec.get("template", manifest)["spec"]["replicatedJobs"]:
        # The runtime's controller adds labels and the restart policy; both may be there.
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}


def check(manifest):
    kind = manifest["kind"]
    if kind in OWN:
        strictly(manifest)
    elif kind == "Kustomization":
        unknown = set(manifest) - KUSTOMIZATION
        if unknown:
            raise ValueError(f"unknown to kustomize: {sorted(unknown)}")
    else:
        same(manifest, kind)
        for job in jobs(manifest) if kind != "TrainJob" else []:
            job["metadata"] = {"name": job["metadata"].get("name", "job"), **job["metadata"]}
            strictly(job)


for path in sys.argv[1:]:
    try:
        with open(path) as file:
            check(yaml.safe_load(file))
    except Exception as problem:  # whatever it is, the manifest is not good
        sys.exit(f"{path}: {problem}")
    print(path)
