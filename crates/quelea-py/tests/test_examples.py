"""The examples and the accuracy scripts, tiny, on data made up in the published formats."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import lzma
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from group import launch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/python"
OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}


def run(script: str, *words: str) -> str:
    """What a script prints; in a process of its own, because its modules have common names."""
    for name in ("data", "models", "text"):
        sys.modules.pop(name, None)
    path = EXAMPLES / script
    sys.path[:0] = [str(path.parent), str(EXAMPLES)]
    sys.argv = [str(path), *words]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def together(processes: int, script: str, *words: object) -> str:
    """What the first of several processes prints."""
    return launch(processes, lambda rank: run(script, *map(str, words)), limit=120)[0]


def module(name: str):
    """A module of the examples, not as one that others would find under its name."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def numbers(printed: str, what: str) -> list[float]:
    return [float(found) for found in re.findall(rf"{what} ([\d.]+)", printed)]


text = module("text")


@pytest.fixture
def cifar10(tmp_path):
    """Ten classes of ten brightnesses."""
    draw = random.Random(1)
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin.xz"]
    for name in names:
        rows = bytearray()
        for _ in range(32):
            label = draw.randrange(10)
            rows += bytes([label]) + bytes(25 * label + draw.randrange(9) for _ in range(3072))
        with OPENERS[Path(name).suffix.replace(".bin", "")](tmp_path / name, "wb") as file:
            file.write(bytes(rows))
    return tmp_path


@pytest.fixture
def multi30k(tmp_path):
    """Sentences of a few words, in a tongue that has another word for each."""
    draw, words = random.Random(1), ["dog", "man", "red", "runs", "sits", "the"]
    for part, count in [("train", 96), ("val", 16), ("test_2016_flickr", 8)]:
        lines = [" ".join(draw.choices(words, k=draw.randint(2, 6))) for _ in range(count)]
        for tongue, ending in [("en", ""), ("de", "h")]:
            spoken = "".join(" ".join(w + ending for w in line.split()) + ".\n" for line in lines)
            with gzip.open(tmp_path / f"{part}.{tongue}.gz", "wt") as file:
                file.write(spoken)
    return tmp_path


@pytest.fixture
def shakespeare(tmp_path):
    (tmp_path / "input.txt").write_text("To be, or not to be: that is the question.\n" * 60)
    return tmp_path


def test_cifar10_learns_with_two_processes(cifar10):
    words = ["--data", cifar10, "--epochs", 3, "--batch", 10, "--lr", 0.02]
    printed = together(2, "cifar10.py", *words)
    losses = numbers(printed, "loss")
    assert len(losses) == 3 and losses[-1] < losses[0], printed
    assert "test accuracy" in printed


def test_translation_learns_with_two_processes(multi30k):
    words = ["--data", multi30k, "--epochs", 4, "--batch", 8, "--lr", 3e-3, "--width", 32]
    printed = together(2, "translate.py", *words, "--algorithm", "allreduce")
    losses = numbers(printed, "validation")
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.3, printed
    assert len(numbers(printed, "BLEU")) == 1


def test_gpt_learns_with_two_processes_that_never_wait(shakespeare):
    words = ["--data", shakespeare, "--steps", 100, "--batch", 4, "--length", 16, "--width", 32]
    printed = together(2, "gpt.py", *words, "--algorithm", "ad-psgd")
    losses = numbers(printed, "loss")
    assert len(losses) == 2 and losses[1] < losses[0], printed
    assert len(printed.splitlines()) > 3  # it has written something


def test_accuracy_of_cifar10_is_on_disk_after_every_evaluation(cifar10, tmp_path):
    out = tmp_path / "result.json"
    words = ["easgd", "--data", cifar10, "--out", out, "--workers", 2, "--batch", 10, "--lr", 0.02]
    together(1, "accuracy/cifar10.py", *words, "--epochs", 2, "--evaluations", 2, "--device", "cpu")
    result = json.loads(out.read_text())
    assert result["complete"] and result["epochs_done"] == 2
    assert [row["epoch"] for row in result["evaluations"]] == [1, 2]
    assert result["evaluations"][1]["train_loss"] < result["evaluations"][0]["train_loss"]
    # 160 samples, 2 workers, batches of 10: 8 steps of each in an epoch.
    assert result["config"]["steps"] == 16
    assert result["worker_models"]["accuracy_worst"] <= result["worker_models"]["accuracy_mean"]


def test_options_of_the_algorithm_hosts_and_held_out_images_reach_the_run(cifar10, tmp_path):
    out = tmp_path / "result.json"
    words = ["aladdin", "--data", cifar10, "--out", out, "--workers", 4, "--batch", 10]
    words += ["--hosts", 2, "--option", "order=mix-then-step", "--option", "period=1"]
    words += ["--held-out", 40, "--epochs", 1, "--evaluations", 1, "--device", "cpu"]
    together(1, "accuracy/cifar10.py", *words)
    result = json.loads(out.read_text())
    wanted = {"name": "aladdin", "order": "mix-then-step", "period": 1}
    assert result["config"]["algorithm"] == wanted
    assert result["config"]["cluster"]["hosts"] == 2
    # 160 samples without 40, 4 workers, batches of 10.
    assert result["config"]["steps"] == 3
    accuracy = result["evaluations"][0]["accuracy"] * 40
    assert abs(accuracy - round(accuracy)) < 1e-6, "measured on the 40 images"


def test_vgg_for_cifar10_has_the_parameters_of_the_paper_and_one_linear_layer():
    models = module("models")
    model = models.vgg11()
    # Eight convolutions with biases and batch normalization, and 512 × 10 + 10.
    assert sum(p.numel() for p in model.parameters()) == 9_231_114
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    assert model(images).shape == (2, 10)


def test_a_cell_that_is_complete_is_not_run_again_and_the_others_are(cifar10, tmp_path):
    sys.path.append(str(EXAMPLES / "accuracy"))
    import cells

    labels = [cell.label for cell in cells.cells()]
    assert len(labels) == len(set(labels)), "a label is a folder"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cifar10").symlink_to(cifar10)
    small = ["--workers", "2", "--batch", "10", "--evaluations", "1", "--no-mps"]
    cell = cells.Cell("one", "cifar10", ["allreduce"], 1, [1, 2], small)
    assert (cell.jobs(), cell.done(tmp_path)) == (2, 0)
    command = cell.command(str(tmp_path / "data"), tmp_path, 100, "cpu")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert cell.done(tmp_path) == 2


def test_all_configurations_run_side_by_side_and_make_a_page(multi30k, tmp_path):
    names = ["allreduce", "accum-adam-aer"]
    command = [sys.executable, str(EXAMPLES / "accuracy/run.py"), "multi30k", "--data", multi30k]
    command += ["--out", tmp_path / "out", "--seconds", 100, "--only", *names, "--device", "cpu"]
    command += ["--workers", 4, "--batch", 8, "--width", 16, "--layers", 1, "--tokens", 280]
    command += ["--epochs", 1, "--evaluations", 1, "--beam", 2]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out/multi30k.json").read_text())
    assert not found["failures"]
    assert [result["name"] for result in found["results"]] == names
    assert all("bleu_beam_2" in result["evaluations"][-1] for result in found["results"])
    page = tmp_path / "page.md"
    together(1, "accuracy/table.py", tmp_path / "out/multi30k.json", "--out", page)
    assert "| AccumAdam, AER | " in page.read_text()
    assert "27.80 / 3.032 / 3.043" in page.read_text()


def test_the_page_of_results_is_made_of_the_results(tmp_path):
    kept = EXAMPLES.parents[1] / "docs/experiments"
    page = tmp_path / "page.md"
    together(1, "accuracy/table.py", kept / "accuracy.json", "--out", page)
    assert page.read_text() == (kept / "accuracy.md").read_text()


def test_diffs_against_ddp_in_the_documentation_are_those_of_the_scripts():
    diffs = module("diffs")
    page = diffs.PAGE.read_text()
    assert len(diffs.BLOCK.findall(page)) == 6
    assert diffs.renewed(page) == page, "run examples/python/diffs.py"


def test_examples_are_short():
    for name in ("cifar10", "translate", "gpt"):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 100


def test_bleu_is_that_of_sacrebleu():
    """The numbers are of sacreBLEU 2.6.0."""
    ours = ["3,5 x-ray 7-8 &quot;a&quot; it's. b.c", "the"]
    theirs = ['3,5 x-ray 7-8 "a" it\'s . b.c', "the end of"]
    assert text.bleu(ours * 2, theirs * 2) == pytest.approx(SACREBLEU, abs=1e-9)
    assert text.bleu(["a b"], ["a b"]) == 0.0 and text.bleu([""], ["a"]) == 0.0
    assert text.bleu(theirs, theirs) == pytest.approx(100.0)


SACREBLEU = 86.6877899750182


def test_a_vocabulary_gives_back_the_text_and_merges_frequent_pairs():
    lines = ["low lower lowest", "nähe  und \tFerne 🦀", ""]
    words = text.Vocabulary.train(lines * 3, 280)
    assert [words.decode(words.encode(line)) for line in lines] == lines
    assert words.decode([*words.encode("low"), text.END, 300]) == "low"
    assert len(words.encode("low low")) == 2 < len("low low")
    assert words.matrix(["low"], 6).tolist() == [
        [text.BEGIN, *words.encode("low"), text.END, 0, 0, 0]
    ]


class Spelled(torch.nn.Module):
    """Knows the answer by heart: the next token follows from the one before."""

    def __init__(self):
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.scores = torch.randn(12, 12, generator=draw) * 2

    def encode(self, source):
        return source[:, :1], (source != 0)[:, None, None]

    def decode(self, target, memory, mask, only_last):
        return self.scores[target[:, -1:]] + memory[:, :, None] * torch.arange(12) / 100


def test_a_beam_of_one_is_greedy_and_a_wider_one_finds_no_worse():
    model = Spelled()
    source = torch.arange(1, 9)[:, None].repeat(1, 10)

    def value(row, first):
        """The mean logarithm of probability up to the end."""
        total, count, before = 0.0, 0, text.BEGIN
        for token in row:
            scores = model.scores[before] + first * torch.arange(12) / 100
            total, count, before = total + scores.log_softmax(0)[token].item(), count + 1, token
            if token == text.END:
                break
        return total / (count + 1)

    greedy, wide = text.translate(model, source, 1), text.translate(model, source, 5)
    for first, (row, other) in enumerate(zip(greedy, wide, strict=True), 1):
        before = text.BEGIN
        for token in row[: row.index(text.END) if text.END in row else None]:
            scores = model.scores[before] + first * torch.arange(12) / 100
            scores[text.PAD] = -1e9
            assert token == scores.argmax().item()
            before = token
        assert value(other, first) >= value(row, first) - 1e-6
