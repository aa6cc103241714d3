"""Makes the page of results: `python table.py OUT/*.json --out docs/experiments/accuracy.md`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

Result = dict[str, Any]

#: Accuracy in percent, as published: Zhang et al. with ResNet-20, 16 learners, 164 epochs; Ko et al.
#: with ResNet-50, 8 workers.
CIFAR10 = {
    "allreduce": ("AllReduce", "90.72", "93.53"),
    "d-psgd": ("D-PSGD, ring", "90.81", ""),
    "ad-psgd": ("AD-PSGD, ring", "91.02", ""),
    "accum-adam": ("AccumAdam, AER", "", ""),
    "sgp": ("SGP, one-peer exponential", "", "93.40"),
    "easgd": ("EASGD", "", "91.12"),
    "asp": ("ASP", "", "93.15"),
    "aladdin": ("ALADDIN", "", "93.78"),
}
#: BLEU, validation loss and training loss, as published by Wang et al. for WMT14 En-De.
MULTI30K = {
    "allreduce": ("AllReduce, Adam", "27.66 / 3.042 / 3.063"),
    "adam-ring": ("Decentralized Adam, ring", "27.63 / 3.043 / 3.063"),
    "adam-aer": ("Decentralized Adam, AER", "27.57 / 3.038 / 3.057"),
    "adam-complete": ("Decentralized Adam, complete", "27.61 / 3.039 / 3.059"),
    "accum-adam-ring": ("AccumAdam, ring", "27.76 / 3.035 / 3.048"),
    "accum-adam-aer": ("AccumAdam, AER", "27.80 / 3.032 / 3.043"),
    "accum-adam-complete": ("AccumAdam, complete", "27.62 / 3.031 / 3.044"),
}

HEAD = """# Accuracy

Every configuration is trained in the virtual cluster (`murmura.simulate`) with a PyTorch model, by the
scripts in [examples/python/accuracy](../../examples/python/accuracy). The schedules are the papers',
stretched to the epochs that there was time for; the papers' numbers stand beside ours for
orientation, and their settings differ where said.

Made by `examples/python/accuracy/table.py`; do not edit.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="the page; without it, it is printed")
    options = parser.parse_args()
    results: list[Result] = []
    for path in options.files:
        results += json.loads(path.read_text())["results"]
    page = HEAD + "".join(
        make(chosen) for task, make in PAGES.items() if (chosen := of(results, task))
    )
    if options.out is None:
        print(page)
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(page)


def of(results: list[Result], task: str) -> list[Result]:
    """Those that have been evaluated at least once."""
    return [result for result in results if result["task"] == task and result["evaluations"]]


def cifar10(results: list[Result]) -> str:
    rows = []
    for name, (title, zhang, ko) in CIFAR10.items():
        runs = [result for result in results if result["name"] == name]
        if not runs:
            continue
        last = [run["evaluations"][-1] for run in runs]
        best = [max(row["accuracy"] for row in run["evaluations"]) for run in runs]
        workers = [run["worker_models"] for run in runs if run["complete"]]
        rows.append(
            [
                title + mark(runs),
                spread([100 * row["accuracy"] for row in last], 2),
                spread([100 * value for value in best], 2),
                spread([100 * found["accuracy_mean"] for found in workers], 2),
                spread([100 * found["accuracy_worst"] for found in workers], 2),
                spread([row["loss"] for row in last], 3),
                spread([row["train_loss"] for row in last], 3),
                zhang,
                ko,
            ]
        )
    head = ["", "accuracy, %", "best", "workers, mean", "workers, worst", "test loss"]
    head += ["training loss", "Zhang et al.", "Ko et al."]
    return f"""
## CIFAR-10, ResNet-20

{facts(results)} Random crops of images padded by four pixels, and mirrored ones. SGD with momentum 0.9,
weight decay 1e-4 and a learning rate of {rate(results, "allreduce")}, divided by ten after 81/164 and
122/164 of the epochs, with a warm-up over the first 5/164; AccumAdam has the rate
{rate(results, "accum-adam")}, L2 of 1/32768 and s = 8. Accuracy is of the model that one would deploy
(the mean of the workers, or the servers' model), over the 10,000 test images, after the last epoch;
"best" is the best of all evaluations. The workers' own models have the mean of the workers'
batch-norm statistics, as the deployed model has. "Training loss" is the mean over the mini-batches since the
evaluation before.

{table(head, rows)}
- Zhang et al. (AD-PSGD): ResNet-20, 16 learners, 32 images each, 164 epochs, learning rate 0.1.
- Ko et al. (ALADDIN): ResNet-50, 8 workers; batch and schedule are not stated.

{curves(results, CIFAR10, "accuracy", "Accuracy of the deployed model, %", 100)}"""


def multi30k(results: list[Result]) -> str:
    rows = []
    for name, (title, wang) in MULTI30K.items():
        runs = [result for result in results if result["name"] == name]
        if not runs:
            continue
        last = [run["evaluations"][-1] for run in runs]
        beam = [value for row in last for key, value in row.items() if key.startswith("bleu_beam")]
        rows.append(
            [
                title + mark(runs),
                spread(beam, 2),
                spread([row["bleu_greedy"] for row in last], 2),
                spread([row["loss"] for row in last], 3),
                spread([min(row["loss"] for row in run["evaluations"]) for run in runs], 3),
                spread([row["train_loss"] for row in last], 3),
                wang,
            ]
        )
    head = ["", "BLEU, beam 4", "BLEU, greedy", "validation loss", "lowest", "training loss"]
    head += ["Wang et al.: BLEU / validation / training"]
    settings = results[0]["settings"]
    return f"""
## Multi30k, English to German

{facts(results)} {settings["model"]}, a joint byte-pair vocabulary of {settings["vocabulary"]} tokens;
dropout 0.1, label smoothing 0.1. Learning rate {rate(results, "allreduce")}, inverse square root after
a warm-up over a tenth of the steps; Adam with β = (0.9, 0.98), AccumAdam with β = (0.9, 0.999), s = 4.
BLEU is of the 1,000 sentences of test_2016_flickr (tokens of 13a, case kept), the losses are smoothed.

{table(head, rows)}
- Wang et al. (Decent-DP): Transformer-base on WMT14 En-De, 16 workers, 25,000 tokens a step, 20 epochs,
  learning rate 7e-4, 4,000 steps of warm-up.

{curves(results, MULTI30K, "loss", "Validation loss", 1)}"""


PAGES = {"cifar10": cifar10, "multi30k": multi30k}


def facts(results: list[Result]) -> str:
    def each(key: str) -> str:
        return ", ".join(sorted({str(result[key]) for result in results}))

    settings, epochs = results[0]["settings"], sorted({result["epochs"] for result in results})
    asked = ", ".join(f"{value:g}" for value in epochs)
    versions = results[0]["versions"]
    return (
        f"{settings['workers']} virtual workers, {settings['batch']} samples each, {asked} epochs; "
        f"seed {each('seed')}; commit {each('commit')}, {each('date')}, {each('device')}, "
        f"murmura {versions['murmura']}, PyTorch {versions['torch']}."
    )


def rate(results: list[Result], name: str) -> str:
    rates = {run["config"]["optimizer"]["lr"] for run in results if run["name"] == name}
    return " or ".join(f"{lr:g}" for lr in sorted(rates)) or "–"


def mark(runs: list[Result]) -> str:
    """Says so where not all was done."""
    cut = [f"{run['epochs_done']:.1f}" for run in runs if not run["complete"]]
    return f" (cut off after {', '.join(cut)} epochs)" if cut else ""


def spread(values: list[float], digits: int) -> str:
    """The mean, and how far runs with other seeds lie from it."""
    if not values:
        return ""
    middle = mean(values)
    apart = max(abs(value - middle) for value in values)
    return f"{middle:.{digits}f}" + (f" ± {apart:.{digits}f}" if len(values) > 1 else "")


def curves(results: list[Result], titles: dict[str, Any], key: str, what: str, scale: float) -> str:
    """A table of at most eight moments of the first seed."""
    runs = {}
    for result in results:
        if result["name"] in titles:
            runs.setdefault(result["name"], result)
    longest = max(runs.values(), key=lambda run: len(run["evaluations"]))["evaluations"]
    places = sorted({round(k * (len(longest) - 1) / 7) for k in range(8)})
    rows = []
    for name in (name for name in titles if name in runs):
        found = runs[name]["evaluations"]
        cells = [f"{scale * found[k][key]:.4g}" if k < len(found) else "" for k in places]
        rows.append([titles[name][0], *cells])
    head = [f"{what}, after epoch", *(f"{longest[k]['epoch']:.3g}" for k in places)]
    return table(head, rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
