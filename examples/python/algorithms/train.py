"""Trains a small network with the new algorithm of damped_gossip.py, in several processes or in simulation.

    quelea launch -n 4 train.py
    python train.py --simulate
"""

import argparse

import torch
from damped_gossip import DampedGossip
from torch.nn.functional import mse_loss

import quelea
import quelea.torch

STEPS = 200


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def samples():
    x = torch.linspace(-2, 2, 512).view(-1, 1)
    return x, torch.sin(2 * x)


def loss_of(model, batch):
    return mse_loss(model(batch[0]), batch[1])


def train():
    """One process of several: as any script under `wrap`."""
    quelea.torch.init()
    rank, size = quelea.torch.rank(), quelea.torch.world_size()
    x, y = (part[rank::size] for part in samples())
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quelea.torch.wrap(model, optimizer, DampedGossip(gamma=0.5), topology="ring")
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, (x, y)).backward()
        optimizer.step()
    with quelea.torch.evaluate_model(), torch.no_grad():
        loss = loss_of(model, samples())
    if rank == 0:
        print(f"{size} processes: loss {loss:.4f}")
    quelea.torch.shutdown()


def simulate():
    """Eight workers in virtual time, one of them four times slower."""
    config = {
        "workers": 8,
        "steps": STEPS,
        "algorithm": DampedGossip(gamma=0.5),
        "optimizer": {"name": "sgd", "lr": 0.1},
        "cluster": {"hosts": 8, "compute_ms": 10.0, "slow": {"3": 4.0}},
    }
    data = list(zip(*samples(), strict=True))
    summary = quelea.simulate(network, loss_of, data, config, batch=64)
    print(f"8 virtual workers: loss {summary['loss']:.4f} in {summary['clock_seconds']:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true")
    simulate() if parser.parse_args().simulate else train()
