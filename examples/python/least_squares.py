"""Decentralized least squares: `quelea launch -n 4 examples/python/least_squares.py`.

Rank i has a matrix A_i and a vector b_i; all want the x that minimizes the sum of ||A_i x - b_i||² / 2.
With plain gossip (`--method dgd`), x stays away from it by the step size; both other methods find it:

    exact diffusion (Yuan et al. 2019)      ψ' = x − μ ∇f(x);  x = (I + W)/2 (ψ' + x − ψ)
    gradient tracking (Nedić et al. 2017)   x' = W x − μ y;    y = W y + ∇f(x') − ∇f(x)
"""

import argparse
from collections.abc import Callable, Iterator

import torch

import quelea.torch as quelea

Gradient = Callable[[torch.Tensor], torch.Tensor]


def dgd(x: torch.Tensor, gradient: Gradient, rate: float) -> Iterator[torch.Tensor]:
    while True:
        x = quelea.neighbor_allreduce(x) - rate * gradient(x)
        yield x


def exact_diffusion(x: torch.Tensor, gradient: Gradient, rate: float) -> Iterator[torch.Tensor]:
    adapted = x
    while True:
        earlier, adapted = adapted, x - rate * gradient(x)
        corrected = adapted + x - earlier
        x = (corrected + quelea.neighbor_allreduce(corrected)) / 2
        yield x


def gradient_tracking(x: torch.Tensor, gradient: Gradient, rate: float) -> Iterator[torch.Tensor]:
    tracked = slope = gradient(x)
    while True:
        # Both exchanges at once.
        mixed_x = quelea.neighbor_allreduce_nonblocking(x)
        mixed_tracked = quelea.neighbor_allreduce_nonblocking(tracked)
        x = quelea.synchronize(mixed_x) - rate * tracked
        earlier, slope = slope, gradient(x)
        tracked = quelea.synchronize(mixed_tracked) + slope - earlier
        yield x


METHODS = {"dgd": dgd, "exact-diffusion": exact_diffusion, "gradient-tracking": gradient_tracking}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=METHODS, default="exact-diffusion")
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rate", type=float, default=0.005)
    options = parser.parse_args()
    quelea.init()
    torch.manual_seed(quelea.rank())
    a, b = torch.randn(20, 5, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    # What nobody could compute without the others' data.
    best = torch.linalg.solve(quelea.allreduce(a.T @ a), quelea.allreduce(a.T @ b))
    quelea.set_topology(options.topology)
    iterates = METHODS[options.method](
        torch.zeros(5, dtype=torch.float64), lambda x: a.T @ (a @ x - b), options.rate
    )
    for step, x in zip(range(1, options.steps + 1), iterates, strict=False):
        if step % (options.steps // 10) == 0:
            distance = quelea.allreduce((x - best).square().sum()).sqrt() / best.norm()
            if quelea.rank() == 0:
                print(f"step {step}: distance {distance:.12f}")


if __name__ == "__main__":
    main()
    quelea.shutdown()
