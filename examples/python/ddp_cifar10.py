"""cifar10.py with DDP: `torchrun --nproc-per-node 4 ddp_cifar10.py --data DIR`."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from data import cifar10, cropped
from models import resnet20
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, help="of each epoch; the default is all there are")
    parser.add_argument("--batch", type=int, default=32, help="of each process")
    parser.add_argument("--lr", type=float, default=0.1)
    options = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"
    images, classes = (tensor.to(device) for tensor in cifar10(options.data, "train"))
    tests, truths = (tensor.to(device) for tensor in cifar10(options.data, "test"))

    torch.manual_seed(0)
    model = resnet20().to(device)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=1e-4)
    model = DistributedDataParallel(model)
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
        with torch.no_grad():
            right = sum(
                (model(x).argmax(1) == y).sum() for x, y in zip(tests.split(500), truths.split(500))
            )
        model.train()
        if rank == 0:
            loss, share = torch.stack(losses).mean().item(), right.item() / len(tests)
            seconds = time.monotonic() - began
            print(f"epoch {epoch + 1}: loss {loss:.3f}, test accuracy {share:.2%}, {seconds:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
