"""CIFAR-10 with ResNet-20: `quelea launch -n 4 examples/python/cifar10.py --data DIR`.

DIR has `data_batch_1.bin` … `test_batch.bin`, also as `.xz` or `.gz`.
"""

import argparse
import time

import torch
from data import cifar10, cropped
from models import resnet20
from torch.nn.functional import cross_entropy

import quelea.torch as quelea


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--algorithm", default="d-psgd")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="of each epoch; the default is all there are")
    parser.add_argument("--batch", type=int, default=32, help="of each process")
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()

    quelea.init()
    rank, size = quelea.rank(), quelea.world_size()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{quelea.local_rank() % torch.cuda.device_count()}"
    images, classes = (tensor.to(device) for tensor in cifar10(options.data, "train"))
    tests, truths = (tensor.to(device) for tensor in cifar10(options.data, "test"))

    torch.manual_seed(0)
    model = resnet20().to(device)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=1e-4)
    model = quelea.wrap(model, optimizer, algorithm=options.algorithm)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

    for epoch in range(options.epochs):
        began, losses = time.monotonic(), []
        # Everybody draws the same order, and takes every size-th image of it.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        batches = order[rank : len(images) // size * size : size].split(options.batch)
        for rows in batches[: options.steps]:
            moves = (torch.rand(len(rows), 3) * torch.tensor([9, 9, 2])).long()
            inputs = cropped(images[rows.to(device)], moves.to(device))
            loss = cross_entropy(model(inputs), classes[rows.to(device)])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        scheduler.step()

        model.eval()
        with quelea.evaluate_model(), torch.no_grad():
            right = sum(
                (model(x).argmax(1) == y).sum() for x, y in zip(tests.split(500), truths.split(500))
            )
        model.train()
        if rank == 0:
            loss, share = torch.stack(losses).mean().item(), right.item() / len(tests)
            seconds = time.monotonic() - began
            print(f"epoch {epoch + 1}: loss {loss:.3f}, test accuracy {share:.2%}, {seconds:.1f} s")
    quelea.shutdown()


if __name__ == "__main__":
    main()
