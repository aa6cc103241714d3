"""The same on a GPU, where there is one. Processes are forked before anybody touches the driver."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from group import launch
from models import batch, digits, distance, flat, make
from torch import nn
from torch.nn.functional import cross_entropy

import quelea.torch as quelea
from quelea import _core

STEPS = 20
pytestmark = pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="no GPU here")


def train(rank, device, algorithm, kind, settings):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    quelea.init()
    properties = _core.properties({"algorithm": {"name": algorithm}})
    model = make(kind, seed=rank).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    quelea.wrap(model, optimizer, algorithm, bucket_mb=0.002, **settings)
    for step in range(STEPS):
        inputs, targets = (tensor.to(device) for tensor in batch(kind, rank, step))
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        # Gradients that servers have must not be changed after the backward pass.
        if not properties.servers_optimize:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == STEPS // 2:
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-0.1, 0.1)
    with quelea.evaluate_model():
        mean = flat(model).cpu()
    quelea.shutdown()
    assert model(inputs).device.type == device
    # Some kernels want it so.
    assert device == "cpu" or all(p.data_ptr() % 128 == 0 for p in model.parameters())
    return mean


@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("allreduce", {}),
        ("d-psgd", {}),
        ("d-psgd", {"form": "adapt-then-combine"}),
        ("sgp", {}),
        ("gradient-tracking", {}),
        ("local-sgd", {"period": 4, "buffers": "keep"}),
        ("sync-ps", {}),
    ],
)
def test_a_gpu_gives_the_numbers_of_the_cpu(kind, algorithm, settings):
    on_gpu = launch(2, train, "cuda", algorithm, kind, settings, limit=120)
    on_cpu = launch(2, train, "cpu", algorithm, kind, settings)
    assert distance(on_gpu[0], on_cpu[0]) < 1e-3
    assert distance(on_gpu[0], flat(make(kind))) > 0.005


@pytest.mark.parametrize("algorithm", ["ad-psgd", "aladdin", "asp"])
def test_asynchronous_algorithms_run_on_a_gpu(algorithm):
    launch(2, train, "cuda", algorithm, "mlp", {}, limit=120)


def test_different_devices_are_refused():
    def work(rank):
        quelea.init()
        model = make("mlp").to("cuda" if rank else "cpu")
        try:
            quelea.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        except quelea.Error as error:
            return str(error)
        return "nothing was refused"

    for message in launch(2, work, limit=120):
        assert "device type cpu" in message and "device type cuda" in message


class Normed(nn.Module):
    """With statistics, and with parameters that nobody uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 10)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def simulated(rank, device, graph):
    """The loss after some steps of virtual workers."""
    from quelea import simulate

    torch.backends.cuda.matmul.allow_tf32 = False
    warnings.filterwarnings("error", message="no CUDA graph")
    data = list(zip(*(tensor[:1500] for tensor in digits()), strict=True))
    config = {"workers": 4, "steps": 40, "algorithm": {"name": "d-psgd"}, "optimizer": {"lr": 0.1}}

    def loss(model, batch):
        return cross_entropy(model(batch[0]), batch[1])

    return simulate(Normed, loss, data, config, device=device, graph=graph)["loss"]


def test_virtual_workers_on_a_gpu_give_the_loss_of_the_cpu_with_and_without_a_graph():
    (on_cpu,) = launch(1, simulated, "cpu", False)
    for graph in (False, True):
        (on_gpu,) = launch(1, simulated, "cuda", graph, limit=120)
        assert on_gpu == pytest.approx(on_cpu, rel=1e-3)
