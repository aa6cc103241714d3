"""English to German on Multi30k: `quelea launch -n 4 examples/python/translate.py --data DIR`.

DIR has `train`, `val` and `test_2016_flickr`, each `.en` and `.de`, also with `.gz` or `.xz`.
"""

import argparse
import time

import torch
from data import multi30k
from models import Translator
from text import PAD, Vocabulary, bleu, translate
from torch.nn.functional import cross_entropy

import quelea.torch as quelea

LENGTH = 40  # tokens of a sentence


def cost(model, source, target, smoothing=0.0):
    scores = model(source, target[:, :-1]).transpose(1, 2)
    return cross_entropy(scores, target[:, 1:], ignore_index=PAD, label_smoothing=smoothing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--algorithm", default="d-psgd")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="of each epoch; the default is all there are")
    parser.add_argument("--batch", type=int, default=64, help="of each process")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=256, help="of the model")
    options = parser.parse_args()

    quelea.init()
    rank, size = quelea.rank(), quelea.world_size()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{quelea.local_rank() % torch.cuda.device_count()}"
    parts = {part: multi30k(options.data, part) for part in ("train", "val", "test_2016_flickr")}
    words = Vocabulary.train([*parts["train"][0], *parts["train"][1]], 6000)
    data = {
        name: [words.matrix(lines, LENGTH).to(device) for lines in part]
        for name, part in parts.items()
    }
    source, target = data["train"]

    torch.manual_seed(0)
    network = Translator(len(words), LENGTH, options.width).to(device)
    optimizer = torch.optim.Adam(network.parameters(), options.lr, betas=(0.9, 0.98))
    model = quelea.wrap(network, optimizer, algorithm=options.algorithm)
    torch.manual_seed(rank)  # dropout differs from rank to rank

    done = 0
    for epoch in range(options.epochs):
        began, losses = time.monotonic(), []
        order = torch.randperm(len(source), generator=torch.Generator().manual_seed(epoch))
        batches = order[rank : len(source) // size * size : size].split(options.batch)
        batches = batches[: options.steps]
        warmup = max(1, options.epochs * len(batches) // 10)
        for rows in batches:
            done += 1
            rate = options.lr * min(done / warmup, (warmup / done) ** 0.5)
            optimizer.param_groups[0]["lr"] = rate
            loss = cost(model, source[rows.to(device)], target[rows.to(device)], smoothing=0.1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())

        network.eval()
        with quelea.evaluate_model(), torch.no_grad():
            checks = [cost(network, *pair) for pair in zip(*(m.split(256) for m in data["val"]))]
            if rank == 0 and epoch + 1 == options.epochs:
                tests = data["test_2016_flickr"][0].split(250)
                found = [words.decode(row) for part in tests for row in translate(network, part)]
                print(f"BLEU {bleu(found, parts['test_2016_flickr'][1]):.2f}")
        network.train()
        if rank == 0:
            loss, check = torch.stack(losses).mean().item(), torch.stack(checks).mean().item()
            seconds = time.monotonic() - began
            print(f"epoch {epoch + 1}: loss {loss:.3f}, validation {check:.3f}, {seconds:.1f} s")
    quelea.shutdown()


if __name__ == "__main__":
    main()
