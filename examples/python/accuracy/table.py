# long: one table of the page after another, each with the claims that it is checked for
"""Makes the page of results: `python table.py OUT/*.json --out docs/experiments/accuracy.md`.

docs/experiments/accuracy.json has the results of which the page in the repository is made.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
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
#: BLEU, validation loss and training loss, as published by Wang et al. for WMT14 En-De. Their ring is
#: that of their public code, in which a worker averages with one neighbour a step.
MULTI30K = {
    "allreduce": ("AllReduce, Adam", "27.66 / 3.042 / 3.063"),
    "adam-ring": ("Decentralized Adam, ring", "27.63 / 3.043 / 3.063"),
    "adam-d-psgd-ring": ("Decentralized Adam, ring of D-PSGD", ""),
    "adam-aer": ("Decentralized Adam, AER", "27.57 / 3.038 / 3.057"),
    "adam-complete": ("Decentralized Adam, complete", "27.61 / 3.039 / 3.059"),
    "accum-adam-ring": ("AccumAdam, ring", "27.76 / 3.035 / 3.048"),
    "accum-adam-d-psgd-ring": ("AccumAdam, ring of D-PSGD", ""),
    "accum-adam-aer": ("AccumAdam, AER", "27.80 / 3.032 / 3.043"),
    "accum-adam-complete": ("AccumAdam, complete", "27.62 / 3.031 / 3.044"),
}


@dataclass
class Claim:
    """Something that a paper says: that a row's value is `least` above another row's (or is `least`
    itself). `*` in a row stands for the setting."""

    text: str
    row: str
    other: str = ""
    least: float = 0.0
    #: What is compared, by its name in MEASURES.
    of: str = "accuracy"


SLOW = ", one worker {} times slower"
#: What the papers say about CIFAR-10.
CIFAR10_CLAIMS = [
    Claim("AllReduce is within 0.3 points of 90.72 or above", "AllReduce*", least=90.42),
    Claim("D-PSGD: at most 0.2 below AllReduce", "D-PSGD, ring*", "AllReduce*", -0.2),
    Claim("AD-PSGD: at most 0.2 below AllReduce", "AD-PSGD, ring*", "AllReduce*", -0.2),
    Claim("AD-PSGD is better than AllReduce", "AD-PSGD, ring*", "AllReduce*"),
    Claim("AD-PSGD is better than D-PSGD", "AD-PSGD, ring*", "D-PSGD, ring*"),
    Claim("ALADDIN: at least AllReduce", "ALADDIN*", "AllReduce*"),
    *(
        Claim(f"AD-PSGD{SLOW.format(n)}: above 91", f"AD-PSGD, ring*{SLOW.format(n)}", "", 91.0)
        for n in (10, 100)
    ),
    *(
        Claim(
            f"AD-PSGD{SLOW.format(n)}: at most 0.2 below none slower",
            f"AD-PSGD, ring*{SLOW.format(n)}",
            "AD-PSGD, ring*",
            -0.2,
        )
        for n in (10, 100)
    ),
    *(
        Claim(
            f"ALADDIN{SLOW.format(n)}: at least AllReduce", f"ALADDIN*{SLOW.format(n)}", "AllReduce*"
        )
        for n in (10, 100)
    ),
    Claim(
        "ALADDIN, one worker 100 times slower: at most 0.2 below none slower",
        "ALADDIN*, one worker 100 times slower",
        "ALADDIN*",
        -0.2,
    ),
    *(
        Claim(
            f"{name} generalizes better than AllReduce: lower test loss",
            f"{row}*",
            "AllReduce*",
            of="test loss",
        )
        for name, row in (("AD-PSGD", "AD-PSGD, ring"), ("ALADDIN", "ALADDIN"))
    ),
]
#: What Ko et al. say about how far workers are apart; the rows of 45 epochs have it for all methods.
VARIANCE_CLAIMS = [
    Claim(
        f"ALADDIN's workers are closer to each other than {name}'s",
        "ALADDIN",
        row,
        of="distance",
    )
    for name, row in (
        ("SGP", "SGP, one-peer exponential"),
        ("D-PSGD", "D-PSGD, ring"),
        ("EASGD", "EASGD"),
    )
]
#: What Wang et al. say about AccumAdam, per topology.
MULTI30K_CLAIMS = [
    Claim(
        f"AccumAdam on {what}: BLEU above {name}",
        f"AccumAdam, {topology}*",
        f"{other}*",
        of="BLEU",
    )
    for topology, what in (
        ("ring", "the ring of the public code"),
        ("ring of D-PSGD", "the ring of D-PSGD"),
        ("AER", "AER"),
        ("complete", "the complete graph"),
    )
    for name, other in (
        ("decentralized Adam", f"Decentralized Adam, {topology}"),
        ("AllReduce", "AllReduce, Adam"),
    )
]


def each_evaluation(key: str, scale: float) -> Callable[[Result], dict[float, float]]:
    return lambda run: {row["epoch"]: scale * row[key] for row in run["evaluations"]}


def at_the_end(value: Callable[[Result], float]) -> Callable[[Result], dict[float, float]]:
    return lambda run: {run["epochs"]: value(run)} if run["complete"] else {}


def beam(run: Result) -> float:
    last = run["evaluations"][-1]
    return next(value for key, value in last.items() if key.startswith("bleu_beam"))


#: What a run has of a quantity, by epoch, more being better; and the decimals it is printed with.
MEASURES: dict[str, tuple[Callable[[Result], dict[float, float]], int]] = {
    "accuracy": (each_evaluation("accuracy", 100.0), 2),
    "test loss": (each_evaluation("loss", -1.0), 3),
    "distance": (at_the_end(lambda run: -run["consensus_distance"]), 4),
    "BLEU": (at_the_end(beam), 2),
}

HEAD = """# Accuracy

Every configuration is trained in the virtual cluster (`quelea.simulate`) with a PyTorch model, by
the scripts in [examples/python/accuracy](../../examples/python/accuracy). The schedules are the
papers', stretched to the epochs that there was time for; the papers' numbers stand beside ours for
orientation. What says "not run" waits for time on a GPU: `cells.py` there has the list, and runs it in
pieces.

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
    by_title = {title: runs for title, _, runs in groups(results, CIFAR10)}
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
- "Half an average per gradient" is AD-PSGD with `averaging = "active"`, the default until commit
  2f825e1; the other rows of AD-PSGD average once per gradient.

What the papers say about 164 epochs, and what the rows with Nesterov's momentum and reshuffled images
say. Rows are compared after the last epoch that both reached. Where seeds are repeated in the tables, the
same method differs by 0.1 to 0.5 points between two of them, so with one seed each a smaller difference
decides nothing; [causes.md](causes.md) has what was tried where the answer is no.

{claims(by_title, CIFAR10_CLAIMS, ", Nesterov, reshuffled, 164 epochs")}
Ko et al. say that the models of decentralized methods vary much between workers and ALADDIN's little. Distance
is the root of the mean squared distance of the workers' models from their mean at the end of 45 epochs.

{claims(by_title, VARIANCE_CLAIMS, "")}
{curves(results, CIFAR10, "accuracy", "Accuracy, %", 100)}"""


def claims(runs: dict[str, list[Result]], chosen: list[Claim], setting: str) -> str:
    """What papers say, and whether it is so here; `runs` are by their titles."""
    rows = []
    for claim in chosen:
        ours = measured(runs.get(claim.row.replace("*", setting), []), claim.of)
        theirs = measured(runs.get(claim.other.replace("*", setting), []), claim.of)
        both = set(ours) & set(theirs) if claim.other else set(ours)
        if not both:
            rows.append([claim.text, "not run", "", "", ""])
            continue
        epoch, digits = max(both), MEASURES[claim.of][1]
        against = theirs[epoch] if claim.other else [0.0]
        apart = mean(ours[epoch]) - mean(against)
        seeds = f"{len(ours[epoch])}" + (f" / {len(against)}" if claim.other else "")
        # What the seeds leave open, if there are several of both.
        wide = (max(values) - min(values) for values in (ours[epoch], against))
        several = min(len(ours[epoch]), len(against) if claim.other else 2) > 1
        open_ = f" ± {sum(wide) / 2:.{digits}f}" if several else ""
        # Losses and distances are negated so that more is better; they are printed as they are.
        sign = -1.0 if claim.of in ("test loss", "distance") else 1.0
        number = f"{sign * apart:{'+' if claim.other else ''}.{digits}f}{open_}"
        rows.append([claim.text, "yes" if apart >= claim.least else "no", number, f"{epoch:g}", seeds])
    return table(["claim", "here", "difference or value", "after epoch", "seeds"], rows)


def measured(runs: list[Result], quantity: str) -> dict[float, list[float]]:
    """By epoch, of all seeds."""
    by_epoch: dict[float, list[float]] = {}
    for run in runs:
        for epoch, value in MEASURES[quantity][0](run).items():
            by_epoch.setdefault(epoch, []).append(value)
    return by_epoch


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
    by_title = {title: runs for title, _, runs in groups(results, MULTI30K)}
    for title, (wang,), runs in groups(results, MULTI30K):
        if not runs:
            rows.append([title, *["not run"] * 5, wang])
            continue
        last = [run["evaluations"][-1] for run in runs]
        rows.append(
            [
                title + mark(runs),
                spread([beam(run) for run in runs], 2),
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
- In the ring of Wang et al.'s public code a worker averages with one neighbour a step (`one-peer-ring`);
  in the ring of D-PSGD with both.

What Wang et al. say about AccumAdam, and what the rows of 34 epochs say, with one seed, one rate for all
and a host for each worker.{falling(by_title, ", 34 epochs")}

{claims(by_title, MULTI30K_CLAIMS, ", 34 epochs")}
{curves(results, MULTI30K, "loss", "Validation loss", 1)}"""


def falling(runs: dict[str, list[Result]], setting: str) -> str:
    """How much the loss fell from the last evaluation but one to the last."""
    said = []
    for title in ("AccumAdam, AER", "AllReduce, Adam"):
        found = [run["evaluations"][-2:] for run in runs.get(title + setting, [])]
        if found:
            said.append(f"{spread([rows[0]['loss'] - rows[-1]['loss'] for rows in found], 3)} ({title})")
    if not said:
        return ""
    return f""" They are not at convergence: from the last evaluation
but one to the last the validation loss still falls by {" and ".join(said)}."""


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
            if chosen or not any(word in text for word in SOME):
                found.append((title + text, published, furthest(chosen)))
    return found


def furthest(runs: list[Result]) -> list[Result]:
    """Those that came furthest: the complete ones if there are any."""
    epochs = max((run["epochs_done"] for run in runs), default=0.0)
    return [run for run in runs if run["epochs_done"] == epochs]


#: How options of an algorithm are said, where their name does not say it.
OPTIONS = {("averaging", "active"): ", half an average per gradient"}
#: What is of interest for some methods only: a row that was not made this way is not missed.
SOME = ("slower", "average per gradient", "alpha", "period", "order", "hosts", "held out", "VGG")


def difference(run: Result, first: Result) -> str:
    """In which settings a run is not as the first of its name."""
    lr, usual = (result["config"]["optimizer"]["lr"] for result in (run, first))
    said = [f", learning rate {lr:g}"] if lr != usual else []
    for option, value in run["config"]["algorithm"].items():
        if option != "name":
            said.append(OPTIONS.get((option, value), f", {option} {value}"))
    for part in ("model", "held_out"):
        value = run["settings"].get(part)
        if value != first["settings"].get(part):
            said.append(f", {value}" if part == "model" else f", {value} images held out")
    hosts = run["config"]["cluster"]["hosts"]
    if hosts != run["settings"]["workers"]:
        said.append(f", {hosts} hosts")
    if run["settings"]["workers"] != first["settings"]["workers"]:
        said.append(f", {run['settings']['workers']} workers")
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
