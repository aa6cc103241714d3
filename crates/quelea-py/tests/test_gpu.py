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


class Dropped(Normed):
    """With random numbers."""

    def forward(self, x):
        return self.last(nn.functional.dropout(self.norm(self.first(x)).relu(), 0.2, self.training))


def virtual_workers(make_model, together):
    """Virtual workers of a model on a GPU, as `simulate` makes them."""
    from quelea import simulation
    from quelea._order import SampleOrder
    from quelea._replicas import Passes

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    warnings.filterwarnings("error", message="no CUDA graph")
    data = list(zip(*(tensor[:1500] for tensor in digits()), strict=True))
    order = SampleOrder(len(data), {"workers": 6}, 32, reshuffle=False)
    passes = Passes(make_model().cuda(), lambda model, b: cross_entropy(model(b[0]), b[1]))
    collate = torch.utils.data.default_collate
    workers = simulation._VirtualWorkers(passes, data, order, collate, None)
    if together:
        workers.choose_batches(together, graph=True)
    return workers


def gradients_together(rank, model):
    """The largest difference from gradients that were computed one by one, of three steps in
    batches of several sizes; relative, and that of the buffers."""
    reference, batched = (virtual_workers(model, together) for together in (0, 4))
    length, differences = reference.flat.numel(), []
    params = [reference.flat.cpu() + 0.01 * rank for rank in range(6)]
    for step in range(3):
        expected = [torch.empty(length) for _ in range(6)]
        found = [torch.empty(length) for _ in range(6)]
        asked = [
            (rank, step, params[rank].data_ptr(), found[rank].data_ptr()) for rank in range(6)
        ]
        groups = [asked[:4], asked[4:]] if step < 2 else [asked[:3], asked[3:4], asked[4:]]
        losses = []
        for group in groups[:2]:
            batched.start(group)
        losses += batched.finish()
        if len(groups) == 3:
            batched.start(groups[2])
        while batched.started:
            losses += batched.finish()
        for rank in range(6):
            grad = expected[rank]
            loss, _ = reference.gradient(rank, step, params[rank].data_ptr(), grad.data_ptr())
            differences.append(abs(loss - losses[rank][0]) / abs(loss))
            differences.append(distance(found[rank], grad))
        for mine, other in zip(batched.kept, reference.kept, strict=True):
            differences.append(distance(mine, other))
    return max(differences)


@pytest.mark.parametrize("model", [Normed, Dropped])
def test_gradients_that_a_graph_computes_together_are_those_of_one_by_one(model):
    (difference,) = launch(1, gradients_together, model, limit=120)
    assert difference < 1e-4


def final_model(rank, together):
    """The trained parameters of a run in the virtual cluster."""
    import tempfile
    from pathlib import Path

    from quelea import simulate

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    warnings.filterwarnings("error", message="no CUDA graph")
    data = list(zip(*(tensor[:1500] for tensor in digits()), strict=True))
    config = {"workers": 6, "steps": 100, "algorithm": {"name": "ad-psgd"}}
    config |= {"optimizer": {"lr": 0.1}, "cluster": {"compute_cv": 0.2}}

    def loss(model, batch):
        return cross_entropy(model(batch[0]), batch[1])

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        simulate(
            Dropped, loss, data, config, device="cuda", graph=True, together=together, out=out
        )
        content = (out / "final.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.float32)


def test_how_many_gradients_a_graph_computes_together_does_not_change_the_model():
    (alone,) = launch(1, final_model, 1, limit=120)
    (together,) = launch(1, final_model, 4, limit=120)
    assert distance(together, alone) < 1e-2


def test_passes_that_cannot_be_captured_run_one_by_one():
    def work(rank):
        from quelea import simulate

        data = list(zip(*(tensor[:600] for tensor in digits()), strict=True))
        config = {"workers": 4, "steps": 10, "optimizer": {"lr": 0.1}}

        def loss(model, batch):
            value = cross_entropy(model(batch[0]), batch[1])
            assert value.item() > 0  # waits for the GPU
            return value

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = simulate(Normed, loss, data, config, device="cuda", graph=True)["loss"]
        expected = simulate(Normed, loss, data, config, device="cuda")["loss"]
        said = [str(one.message) for one in caught if "no CUDA graph" in str(one.message)]
        return found, expected, len(said)

    ((found, expected, said),) = launch(1, work, limit=120)
    assert said == 1 and found == pytest.approx(expected, rel=1e-4)


def within_host(rank, way):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    quelea.init()
    model = make("mlp").cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if way is not None:
        quelea.wrap(model, optimizer, "d-psgd", within_host=way)
        assert torch.distributed.get_backend() == "nccl"
    for step in range(STEPS):
        inputs, targets = (tensor.cuda() for tensor in batch("mlp", rank, step))
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    quelea.shutdown()
    whole = [getattr(p.detach(), "full_tensor", p.detach)() for p in model.parameters()]
    return torch.cat([tensor.flatten() for tensor in whole]).cpu()


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_host_of_one_rank_trains_through_nccl_as_the_script_alone(way):
    """NCCL takes one rank per GPU; several ranks of a host are tested through gloo."""
    (ours,), (alone,) = launch(1, within_host, way), launch(1, within_host, None)
    assert distance(ours, alone) < 1e-5
