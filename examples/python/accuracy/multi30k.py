"""Multi30k, English to German, with a small Transformer on 8 virtual workers:
`python multi30k.py accum-adam-aer --data DIR --out FILE`.

After Wang et al. (Decent-DP), whose translation runs are Transformer-base on WMT14 En-De: Adam with
β = (0.9, 0.98) under all-reduce, decentralized Adam and AccumAdam (β2 = 0.999, s = 4) on the ring of
their public code (a worker averages with one neighbour a step), the alternating exponential ring and
the complete graph, and on the ring of D-PSGD (both neighbours); an inverse-square-root schedule after a
warm-up; label smoothing 0.1 and dropout 0.1. The model (4.9 million parameters and the vocabulary),
64 sentences per worker, a rate of 1e-3 and a warm-up over a tenth of all steps are ours.

It needs `train`, `val` and `test_2016_flickr`, each as `.en` and `.de`, in DIR, also as `.gz` or
`.xz`. The vocabulary is made of the training text, and kept in DIR as `bpe.json` if that can be
written to (run.py sees to it).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).parents[1]))

from data import multi30k  # noqa: E402
from job import Job, Task, algorithm_options, arguments, quick_kernels, write_json  # noqa: E402
from models import Translator  # noqa: E402
from text import PAD, Vocabulary, bleu, translate  # noqa: E402

WORKERS, BATCH, LR = 8, 64, 1e-3
TOKENS, LENGTH, WIDTH, LAYERS = 6000, 40, 256, 3
ADAM = {"name": "adam", "lr": LR, "beta2": 0.98, "epsilon": 1e-9}
ACCUM_ADAM = {"name": "accum-adam", "lr": LR, "beta2": 0.999, "epsilon": 1e-9, "accumulate": 4}
#: Algorithm, topology and optimizer.
CONFIGURATIONS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "allreduce": ("allreduce", None, ADAM),
    "adam-ring": ("d-psgd", "one-peer-ring", ADAM),
    "adam-d-psgd-ring": ("d-psgd", "ring", ADAM),
    "adam-aer": ("d-psgd", "aer", ADAM),
    "adam-complete": ("d-psgd", "complete", ADAM),
    "accum-adam-ring": ("d-psgd", "one-peer-ring", ACCUM_ADAM),
    "accum-adam-d-psgd-ring": ("d-psgd", "ring", ACCUM_ADAM),
    "accum-adam-aer": ("d-psgd", "aer", ACCUM_ADAM),
    "accum-adam-complete": ("d-psgd", "complete", ACCUM_ADAM),
}


def main() -> None:
    parser = arguments(__doc__, list(CONFIGURATIONS))
    parser.add_argument("--tokens", type=int, default=TOKENS, help="size of the vocabulary")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--beam", type=int, default=4, help="of the last translation")
    parser.set_defaults(evaluations=10)
    options = parser.parse_args()
    quick_kernels()
    Job(task(options), options).run()


def vocabulary(folder: str, size: int) -> Vocabulary:
    """The one in the folder if it has this size, else a new one that is kept there."""
    path = Path(folder) / "bpe.json"
    if path.exists():
        known = json.loads(path.read_text())
        if known["size"] == size:
            return Vocabulary(known["merges"])
    english, german = multi30k(folder, "train")
    made = Vocabulary.train([*english, *german], size)
    try:
        write_json(path, {"size": size, "merges": made.merges})
    except OSError:
        pass  # it is made anew each time
    return made


def cost(model, english, german, smoothing, reduction):
    scores = model(english, german[:, :-1]).flatten(0, 1)
    truth = german[:, 1:].flatten()
    return cross_entropy(
        scores, truth, ignore_index=PAD, label_smoothing=smoothing, reduction=reduction
    )


class Multi30k:
    """The sentences on the device, and what a task needs of them."""

    def __init__(self, options):
        self.options, self.workers = options, options.workers or WORKERS
        self.words = vocabulary(options.data, options.tokens)
        self.source, self.target, _ = self.pairs("train")
        self.val_source, self.val_target, _ = self.pairs("val")
        self.test_source, _, self.references = self.pairs("test_2016_flickr")

    def pairs(self, part: str) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        options = self.options
        english, german = (lines[: options.samples] for lines in multi30k(options.data, part))
        matrices = [
            self.words.matrix(lines, LENGTH).to(options.device) for lines in (english, german)
        ]
        return matrices[0], matrices[1], german

    def make_model(self) -> torch.nn.Module:
        torch.manual_seed(self.options.seed)
        return Translator(len(self.words), LENGTH, self.options.width, self.options.layers)

    def loss(self, model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        return cost(model, self.source[rows], self.target[rows], 0.1, "mean")

    def measure(self, model: torch.nn.Module, is_last: bool) -> dict[str, float]:
        total, plain = 0.0, 0.0
        for english, german in zip(self.val_source.split(512), self.val_target.split(512)):
            total += float(cost(model, english, german, 0.1, "sum"))
            plain += float(cost(model, english, german, 0.0, "sum"))
        count = int((self.val_target[:, 1:] != PAD).sum())
        found = {"loss": total / count, "plain_loss": plain / count}
        beam = self.options.beam
        beams = {"bleu_greedy": 1, f"bleu_beam_{beam}": beam} if is_last else {"bleu_greedy": 1}
        for key, beam in beams.items():
            found[key] = bleu(self.translations(model, beam), self.references)
        return found

    def translations(self, model: torch.nn.Module, beam: int) -> list[str]:
        parts = self.test_source.split(500)
        return [self.words.decode(row) for part in parts for row in translate(model, part, beam)]

    def config(self, name: str, steps: int) -> dict[str, Any]:
        algorithm, topology, optimizer = CONFIGURATIONS[name]
        schedule = {"name": "inverse-sqrt", "warmup_steps": max(1, round(steps / 10))}
        lr = self.options.lr or optimizer["lr"]
        return {
            "seed": self.options.seed,
            "workers": self.workers,
            "steps": steps,
            "plots": False,
            "algorithm": {"name": algorithm, **algorithm_options(self.options)},
            **({"topology": {"name": topology}} if topology else {}),
            "optimizer": {**optimizer, "lr": lr, "schedule": schedule},
            "cluster": {"hosts": self.options.hosts or self.workers},
        }


def task(options) -> Task:
    data, batch, layers = Multi30k(options), options.batch or BATCH, options.layers
    return Task(
        "multi30k",
        data.make_model,
        data.loss,
        torch.tensor,
        data.measure,
        len(data.source),
        batch,
        data.config,
        {
            "model": f"Transformer, {layers} + {layers} layers, width {options.width}",
            "vocabulary": len(data.words),
            "batch": batch,
            "workers": data.workers,
            "direction": "English to German",
        },
    )


if __name__ == "__main__":
    main()
