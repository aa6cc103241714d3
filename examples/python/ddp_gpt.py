"""gpt.py with DDP: `torchrun --nproc-per-node 4 ddp_gpt.py --data DIR`."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from data import shakespeare
from models import GPT
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=16, help="of each process")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--length", type=int, default=128, help="characters that it sees")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    return parser.parse_args()


def batch(tokens, length, count, generator=None):
    """Random windows of the text, and the same windows one character later."""
    starts = torch.randint(len(tokens) - length, (count, 1), generator=generator)
    rows = tokens[(starts + torch.arange(length + 1)).to(tokens.device)]
    return rows[:, :-1], rows[:, 1:]


def cost(model, inputs, targets):
    return cross_entropy(model(inputs).transpose(1, 2), targets)


def continued(model, tokens, length, count):
    """The tokens and `count` more, each drawn from the model's distribution."""
    for _ in range(count):
        scores = model(tokens[None, -length:])[0, -1]
        tokens = torch.cat([tokens, torch.multinomial(scores.softmax(0), 1)])
    return tokens


def main() -> None:
    options = arguments()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    text = shakespeare(options.data)
    letters = sorted(set(text))
    number = {letter: place for place, letter in enumerate(letters)}
    tokens = torch.tensor([number[letter] for letter in text], device=device)
    train, held_out = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]

    torch.manual_seed(0)
    model = GPT(len(letters), options.length, options.width).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), options.lr, betas=(0.9, 0.99), weight_decay=0.1
    )
    model = DistributedDataParallel(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    torch.manual_seed(rank)  # every rank draws its own batches

    began, losses = time.monotonic(), []
    for step in range(1, options.steps + 1):
        loss = cost(model, *batch(train, options.length, options.batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.detach())
        if rank == 0 and step % 50 == 0:
            mean, seconds = torch.stack(losses[-50:]).mean().item(), time.monotonic() - began
            print(f"step {step}: loss {mean:.3f}, {seconds:.1f} s")

    model.eval()
    with torch.no_grad():
        same = torch.Generator().manual_seed(1)
        windows = [batch(held_out, options.length, 64, same) for _ in range(8)]
        checks = [cost(model, *window).item() for window in windows]
        if rank == 0:
            print(f"loss on held-out text: {sum(checks) / len(checks):.3f}")
            first = torch.tensor([number["\n"]], device=device)
            written = continued(model, first, options.length, 200).tolist()
            print("".join(letters[token] for token in written))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
