"""Makes the page of results: `python table.py OUT/*.json --out docs/experiments/accuracy.md`.

docs/experiments/accuracy.json has the results of which the page in the repository is made.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

Result = dict[str, Any]

#: Accuracy in percent, as published: Zhang et al. with ResNet-20, 16 learners, 164 epochs; Ko et
#: al. with ResNet-50, 8 workers.
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

#: A claim, the row it is about, the row that it is compared with if any, and the least difference (or
#: accuracy) at which it holds. `*` stands for the setting.
CLAIMS = [
    ("AllReduce is within 0.3 points of 90.72 or above", "AllReduce*", "", 90.42),
    ("D-PSGD: at most 0.2 below AllReduce", "D-PSGD, ring*", "AllReduce*", -0.2),
    ("AD-PSGD: at most 0.2 below AllReduce", "AD-PSGD, ring*", "AllReduce*", -0.2),
    ("AD-PSGD is better than AllReduce", "AD-PSGD, ring*", "AllReduce*", 0.0),
    ("AD-PSGD is better than D-PSGD", "AD-PSGD, ring*", "D-PSGD, ring*", 0.0),
    ("ALADDIN: at least AllReduce", "ALADDIN*", "AllReduce*", 0.0),
    (
        "AD-PSGD, one worker 10 times slower: above 91",
        "AD-PSGD, ring*, one worker 10 times slower",
        "",
        91.0,
    ),
    (
        "AD-PSGD, one worker 100 times slower: above 91",
        "AD-PSGD, ring*, one worker 100 times slower",
        "",
        91.0,
    ),
    (
        "AD-PSGD, one worker 10 times slower: at most 0.2 below none slower",
        "AD-PSGD, ring*, one worker 10 times slower",
        "AD-PSGD, ring*",
        -0.2,
    ),
    (
        "AD-PSGD, one worker 100 times slower: at most 0.2 below none slower",
        "AD-PSGD, ring*, one worker 100 times slower",
        "AD-PSGD, ring*",
        -0.2,
    ),
    (
        "ALADDIN, one worker 10 times slower: at least AllReduce",
        "ALADDIN*, one worker 10 times slower",
        "AllReduce*",
        0.0,
    ),
    (
        "ALADDIN, one worker 100 times slower: at least AllReduce",
        "ALADDIN*, one worker 100 times slower",
        "AllReduce*",
        0.0,
    ),
    (
        "ALADDIN, one worker 100 times slower: at most 0.2 below none slower",
        "ALADDIN*, one worker 100 times slower",
        "ALADDIN*",
        -0.2,
    ),
]

HEAD = """# Accuracy

Every configuration is trained in the virtual cluster (`quelea.simulate`) with a PyTorch model, by
the scripts in [examples/python/accuracy](../../examples/python/accuracy). The schedules are the
papers', stretched to the epochs that there was time for; the papers' numbers stand beside ours for
orientation.

Made by `examples/python/accuracy/table.py` of [accuracy.json](accuracy.json); do not edit.
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
    for title, (zhang, ko), runs in groups(results, CIFAR10):
        if not runs:
            rows.append([title, "", *["not run"] * 6, zhang, ko])
            continue
        evaluated = [run["evaluations"] for run in runs]
        last = [found[-1] for found in evaluated]
        best = [max(row["accuracy"] for row in found) for found in evaluated]
        workers = [run["worker_models"] for run in runs if run["complete"]]
        rows.append(
            [
                title + mark(runs),
                ", ".join(sorted(str(run["seed"]) for run in runs)),
                spread([100 * row["accuracy"] for row in last], 2),
                spread([100 * value for value in best], 2),
                spread([100 * found["accuracy_mean"] for found in workers], 2) or "not run",
                spread([100 * found["accuracy_worst"] for found in workers], 2) or "not run",
                spread([row["loss"] for row in last], 3),
                spread([row["train_loss"] for row in last], 3),
                zhang,
                ko,
            ]
        )
    head = ["", "seeds", "accuracy, %", "best", "workers, mean", "workers, worst", "test loss"]
    head += ["training loss", "Zhang et al.", "Ko et al."]
    return f"""
## CIFAR-10, ResNet-20

{table(["", ""], [list(row) for row in cifar10_settings(results)])}
{table(head, rows)}
- Accuracy is over the 10,000 test images, of the model that one would deploy (the mean of the
  workers, or the servers' model), after the last epoch; "best" is the best of all evaluations.
- The workers' own models are evaluated with the mean of all workers' batch-norm statistics.
- Training loss is the mean over all mini-batches since the evaluation before.
- ± is the largest distance of a seed from the mean. A row whose title ends in settings differs in
  them from the row of that name above.
- "Cut off after" gives the last epoch at which the run was evaluated, on the schedule of the whole
  run: its numbers are those of that epoch. Seeds that were cut off before that
  are not in the table; accuracy.json has them.
- Zhang et al. (AD-PSGD): ResNet-20, 16 learners, 32 images each, learning rate 0.1, 164 epochs.
  Fewer epochs on the same schedule cost accuracy: compare rows with each other first.
- Ko et al. (ALADDIN): ResNet-50, 8 workers; batch and schedule are not stated.

{claims(results)}
{curves(results, CIFAR10, "accuracy", "Accuracy, %", 100)}"""


def claims(results: list[Result]) -> str:
    """What the papers say about 164 epochs, and whether it is so here."""
    setting = ", Nesterov, reshuffled, 164 epochs"
    runs = {title: found for title, _, found in groups(results, CIFAR10) if found}

    def accuracies(title: str) -> dict[float, list[float]]:
        """By epoch, of all seeds."""
        by_epoch: dict[float, list[float]] = {}
        for run in runs.get(title, []):
            for row in run["evaluations"]:
                by_epoch.setdefault(row["epoch"], []).append(100 * row["accuracy"])
        return by_epoch

    rows = []
    for claim, title, other, least in CLAIMS:
        ours = accuracies(title.replace("*", setting))
        if not ours:
            rows.append([claim, "not run", "", "", ""])
            continue
        theirs = accuracies(other.replace("*", setting)) if other else {}
        epoch = max(set(ours) & set(theirs)) if other else max(ours)
        against = mean(theirs[epoch]) if other else 0.0
        apart = mean(ours[epoch]) - against
        seeds = f"{len(ours[epoch])}" + (f" / {len(theirs[epoch])}" if other else "")
        number = f"{apart:+.2f}" if other else f"{apart:.2f}"
        rows.append([claim, "yes" if apart >= least else "no", number, f"{epoch:g}", seeds])
    return f"""What the papers say about 164 epochs, and what the rows with Nesterov's momentum and reshuffled images
say. Rows are compared after the last epoch that both reached. Two seeds of AD-PSGD differ by half a point
after 128 epochs, so with one seed each a smaller difference decides nothing.

{table(["claim", "here", "points", "after epoch", "seeds"], rows)}"""


def cifar10_settings(results: list[Result]) -> list[tuple[str, str]]:
    """What all runs have in common, or differ in."""
    return [
        *facts(results),
        ("data", "random crops of images padded by four pixels, half of them mirrored"),
        (
            "optimizer",
            f"SGD, momentum 0.9, weight decay 1e-4, learning rate {rate(results, 'd-psgd')}",
        ),
        ("AccumAdam", f"learning rate {rate(results, 'accum-adam')}, L2 1/32768, s = 8"),
        ("schedule", "warm-up over 5/164 of the epochs, ÷ 10 after 81/164 and after 122/164"),
        (
            "Nesterov, reshuffled",
            "Nesterov's momentum, and all images distributed over the workers anew in every epoch; "
            "without it each worker keeps its own images",
        ),
        (
            "virtual cluster",
            "a host for each worker, 100 Gbit/s, 2 µs; gradients of 11.55 ms ± 10 %",
        ),
    ]


def multi30k(results: list[Result]) -> str:
    rows = []
    for title, (wang,), runs in groups(results, MULTI30K):
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
    sizes = results[0]["settings"]
    settings = [
        *facts(results),
        ("model", f"{sizes['model']}, dropout 0.1"),
        ("vocabulary", f"{sizes['vocabulary']} byte pairs, one for both languages"),
        ("loss", "cross entropy, label smoothing 0.1; in all columns"),
        ("Adam", f"learning rate {rate(results, 'allreduce')}, β = (0.9, 0.98), ε = 1e-9"),
        ("AccumAdam", f"learning rate {rate(results, 'accum-adam-aer')}, β = (0.9, 0.999), s = 4"),
        ("schedule", "warm-up over a tenth of the steps, then inverse square root"),
    ]
    return f"""
## Multi30k, English to German

{table(["", ""], [list(row) for row in settings])}
{table(head, rows)}
- BLEU is of the 1,000 sentences of test_2016_flickr (tokens of 13a, case kept), of the mean of the
  workers' models; "lowest" is the lowest validation loss of all evaluations.
- Wang et al. (Decent-DP): Transformer-base on WMT14 En-De, 16 workers, 25,000 tokens a step, 20
  epochs, learning rate 7e-4, 4,000 steps of warm-up. Another task: compare rows, not numbers.
- A row whose title ends in a setting differs in it from the row of that name above.

{curves(results, MULTI30K, "loss", "Validation loss", 1)}"""


PAGES = {"cifar10": cifar10, "multi30k": multi30k}


def groups(results: list[Result], titles: dict[str, tuple[str, ...]]) -> list[tuple]:
    """A title, what was published, and the runs, which differ in their seeds only; no runs where
    others were made in this way and these were not."""
    found = []
    firsts = {result["name"]: result for result in reversed(results)}
    variants = dict.fromkeys(difference(result, firsts[result["name"]]) for result in results)
    for name, (title, *published) in titles.items():
        runs = [result for result in results if result["name"] == name]
        alike: dict[str, list[Result]] = {text: [] for text in variants}
        for run in runs:
            alike[difference(run, runs[0])].append(run)
        for text, chosen in alike.items():
            if chosen or "slower" not in text:  # a slow worker is of interest for some only
                found.append((title + text, published, furthest(chosen)))
    return found


def furthest(runs: list[Result]) -> list[Result]:
    """Those that came furthest: the complete ones if there are any."""
    epochs = max((run["epochs_done"] for run in runs), default=0.0)
    return [run for run in runs if run["epochs_done"] == epochs]


def difference(run: Result, first: Result) -> str:
    """In which settings a run is not as the first of its name."""
    lr, usual = (result["config"]["optimizer"]["lr"] for result in (run, first))
    said = [f", learning rate {lr:g}"] if lr != usual else []
    if run["config"]["optimizer"].get("nesterov") and run["settings"].get("reshuffle"):
        said.append(", Nesterov, reshuffled")
    if run["epochs"] != first["epochs"]:
        said.append(f", {run['epochs']:g} epochs")
    for factor in run["config"]["cluster"].get("slow", {}).values():
        said.append(f", one worker {factor:g} times slower")
    return "".join(said)


def facts(results: list[Result]) -> list[tuple[str, str]]:
    def each(key: str) -> str:
        return ", ".join(sorted({str(result[key]) for result in results}))

    settings, versions = results[0]["settings"], results[0]["versions"]
    epochs = ", ".join(f"{value:g}" for value in sorted({result["epochs"] for result in results}))
    software = (
        f"quelea {versions['quelea']} at commit {each('commit')}, PyTorch {versions['torch']}"
    )
    return [
        ("run", f"{each('date')} on {each('device')}, {software}; seed {each('seed')}"),
        ("size", f"{settings['workers']} virtual workers, {settings['batch']} samples each a step"),
        ("epochs", epochs),
    ]


def rate(results: list[Result], name: str) -> str:
    """The learning rate of the first run of this name."""
    rates = [run["config"]["optimizer"]["lr"] for run in results if run["name"] == name]
    return f"{rates[0]:g}" if rates else "–"


def mark(runs: list[Result]) -> str:
    """Says so where not all was done."""
    cut = {f"{run['epochs_done']:g}" for run in runs if not run["complete"]}
    return f" (cut off after {', '.join(cut)})" if cut else ""


def spread(values: list[float], digits: int) -> str:
    """The mean, and how far runs with other seeds lie from it."""
    if not values:
        return ""
    middle = mean(values)
    apart = max(abs(value - middle) for value in values)
    return f"{middle:.{digits}f}" + (f" ± {apart:.{digits}f}" if len(values) > 1 else "")


def curves(results: list[Result], titles: dict[str, Any], key: str, what: str, scale: float) -> str:
    """For each number of epochs, at most eight moments of the first seed."""
    runs = [(title, of_title[0]) for title, _, of_title in groups(results, titles) if of_title]
    tables = []
    for epochs in sorted({run["epochs"] for _, run in runs}):
        alike = [(title, run["evaluations"]) for title, run in runs if run["epochs"] == epochs]
        # Some may have been cut off: the last moment is one that all reached.
        shortest = min((found for _, found in alike), key=len)
        places = sorted({round(k * (len(shortest) - 1) / 7) for k in range(8)})
        rows = []
        for title, found in alike:
            rows.append([title, *(f"{scale * found[k][key]:.4g}" for k in places)])
        head = [f"{what}, after epoch", *(f"{shortest[k]['epoch']:.3g}" for k in places)]
        tables.append(table(head, rows))
    return "\n".join(tables)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
