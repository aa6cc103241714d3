"""Average consensus: `quelea launch -n 4 examples/python/consensus.py --topology ring`.

Every rank has a vector, and all want the mean. Nobody talks to anybody but its neighbours: one step
replaces a vector by the weighted mean of the neighbourhood.
"""

import argparse

import torch

import quelea.torch as quelea


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--size", type=int, default=1000)
    options = parser.parse_args()
    quelea.init()
    torch.manual_seed(quelea.rank())
    x = torch.randn(options.size, dtype=torch.float64)
    mean = quelea.allreduce(x)
    quelea.set_topology(options.topology)
    for step in range(options.steps):
        x = quelea.neighbor_allreduce(x, step=step)
        distance = quelea.allreduce((x - mean).square().sum()).sqrt().item()
        if quelea.rank() == 0:
            print(f"step {step + 1}: distance {distance:.12f}")


if __name__ == "__main__":
    main()
    quelea.shutdown()
