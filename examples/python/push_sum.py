"""The mean by push-sum with windows: `quelea launch -n 4 examples/python/push_sum.py`.

Every rank halves its vector and a weight that is 1 at first, keeps a part, and adds the others to the
windows of those that it sends to, which do not wait for it (Kempe et al. 2003). Sums over all ranks
stay what they are, so vector divided by weight tends to the mean, on graphs whose edges go one way as
well. Ranks meet only now and then.
"""

import argparse

import torch

import quelea.torch as quelea


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default="exponential")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--meet", type=int, default=5, help="steps between two barriers")
    options = parser.parse_args()
    quelea.init()
    torch.manual_seed(quelea.rank())
    value = torch.randn(10, dtype=torch.float64)
    mean = quelea.allreduce(value)
    quelea.set_topology(options.topology)
    targets = quelea.out_neighbor_ranks()
    share = 1 / (len(targets) + 1)
    mass = torch.cat([value, torch.ones(1, dtype=torch.float64)])
    quelea.win_create(mass, "mass", zero_init=True)
    for step in range(options.steps):
        quelea.win_accumulate(mass, "mass", share, dict.fromkeys(targets, share))
        mass = quelea.win_update_then_collect("mass")
        if step % options.meet == options.meet - 1:
            quelea.barrier()
    quelea.barrier()
    mass = quelea.win_update_then_collect("mass")
    quelea.win_free("mass")
    total = quelea.allreduce(mass, average=False)
    distance = quelea.allreduce((mass[:-1] / mass[-1] - mean).square().sum()).sqrt()
    lost = (total[:-1] / quelea.world_size() - mean).norm() + (total[-1] - quelea.world_size()).abs()
    if quelea.rank() == 0:
        print(f"distance {distance:.12f}, lost {lost:.15f}")


if __name__ == "__main__":
    main()
    quelea.shutdown()
