"""Several models in one process, one after the other and at the same time."""

from __future__ import annotations

import copy

import pytest
import torch
from group import launch
from models import distance, flat, make
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import quelea.torch as quelea

SIZE, STEPS = 2, 12


class Gan:
    """A generator and a discriminator of points on a circle."""

    def __init__(self, seed: int = 0):
        torch.manual_seed(seed)
        self.generator = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.optimizers = [
            torch.optim.Adam(model.parameters(), lr=0.01) for model in (self.generator, self.discriminator)
        ]

    def discriminator_loss(self, rank: int, step: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(100 * step + rank)
        angle = 6.2832 * torch.rand(8, generator=random)
        real = torch.stack([angle.cos(), angle.sin()], 1)
        fake = self.generator(torch.randn(8, 2, generator=random)).detach()
        seen = self.discriminator(torch.cat([real, fake]))
        return bce(seen, torch.cat([torch.ones(8, 1), torch.zeros(8, 1)]))

    def generator_loss(self, rank: int, step: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(100 * step + rank + 50)
        made = self.generator(torch.randn(8, 2, generator=random))
        return bce(self.discriminator(made), torch.ones(8, 1))


def train_gan(rank, algorithms):
    quelea.init()
    gan = Gan(seed=rank)
    models = (gan.generator, gan.discriminator)
    for model, optimizer, algorithm in zip(models, gan.optimizers, algorithms, strict=True):
        quelea.wrap(model, optimizer, algorithm)
    generate, discriminate = gan.optimizers
    for step in range(STEPS):
        discriminate.zero_grad()
        gan.discriminator_loss(rank, step).backward()
        discriminate.step()
        generate.zero_grad()
        # The generator's gradient passes through the discriminator, which takes no step of it.
        with gan.discriminator.no_sync():
            gan.generator_loss(rank, step).backward()
        generate.step()
    steps = [quelea.global_step(model) for model in models]
    quelea.shutdown()
    # Asynchronous ranks learn of each other's steps a little later.
    assert max(steps) <= STEPS
    assert steps == [STEPS, STEPS] or "ad-psgd" in algorithms
    return torch.cat([flat(model) for model in models])


def reference() -> torch.Tensor:
    """Both models on the mean gradient of all ranks, in one process."""
    gan = Gan()
    generate, discriminate = gan.optimizers
    for step in range(STEPS):
        for optimizer, loss in ((discriminate, gan.discriminator_loss), (generate, gan.generator_loss)):
            optimizer.zero_grad()
            for rank in range(SIZE):
                (loss(rank, step) / SIZE).backward()
            optimizer.step()
    return torch.cat([flat(gan.generator), flat(gan.discriminator)])


def test_a_gan_trains_as_on_the_batches_of_all_ranks():
    found = launch(SIZE, train_gan, ["allreduce", "allreduce"])
    assert torch.equal(found[0], found[1])
    assert distance(found[0], reference()) < 1e-5


@pytest.mark.parametrize("algorithms", [["d-psgd", "allreduce"], ["ad-psgd", "aladdin"]])
def test_every_model_has_an_algorithm_of_its_own(algorithms):
    found = launch(SIZE, train_gan, algorithms)
    half = sum(p.numel() for p in Gan().generator.parameters())
    same = [torch.equal(found[0][part], found[1][part]) for part in (slice(half), slice(half, None))]
    assert same == [name == "allreduce" for name in algorithms]


def teacher_and_student(rank):
    """The teacher trains, then is frozen and teaches; its run ends while the student's continues."""
    quelea.init()
    teacher, student = make("mlp", seed=1), make("mlp", seed=2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (teacher, student)]
    quelea.wrap(teacher, optimizers[0], "d-psgd")
    quelea.wrap(student, optimizers[1], "allreduce")
    inputs = torch.randn(16, 10, generator=torch.Generator().manual_seed(rank))
    scheduler = quelea.GlobalScheduler(torch.optim.lr_scheduler.StepLR(optimizers[1], 5, 0.5))
    for _ in range(4):
        teacher(inputs).square().mean().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
    assert (quelea.global_step(teacher), quelea.global_step(student)) == (4, 0)
    state = quelea.state_dict(teacher)
    quelea.shutdown(teacher)
    before = flat(teacher)
    first = last = None
    for _ in range(10):
        with torch.no_grad():
            wanted = teacher(inputs)
        loss = (student(inputs) - wanted).square().mean()
        quelea.report_loss(loss)
        loss.backward()
        optimizers[1].step()
        scheduler.step()
        optimizers[1].zero_grad()
        first, last = first or loss.item(), loss.item()
    assert scheduler.get_last_lr() == [0.0125]
    assert last < first
    assert torch.equal(flat(teacher), before)
    with quelea.evaluate_model() as mean:
        assert mean is student
    quelea.shutdown()
    return state["algorithm"]


def test_a_teacher_ends_its_run_while_the_student_trains():
    assert launch(SIZE, teacher_and_student) == ["d-psgd"] * SIZE


def one_after_the_other(rank):
    quelea.init()
    found = []
    for seed in range(3):
        model = make("mlp", seed=seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        quelea.wrap(model, optimizer)
        model(torch.ones(4, 10) * rank).sum().backward()
        optimizer.step()
        quelea.shutdown()
        found.append(flat(model))
    return torch.stack(found)


def test_models_one_after_the_other_are_independent():
    first, second = launch(SIZE, one_after_the_other)
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def message_of(call) -> str:
    try:
        call()
    except quelea.Error as error:
        return str(error)
    return "nothing was refused"


def wrong_uses(rank):
    quelea.init()
    gan = Gan()
    models = (gan.generator, gan.discriminator)
    for model, optimizer in zip(models, gan.optimizers, strict=True):
        quelea.wrap(model, optimizer)
    both = nn.ModuleList(models)
    stranger = copy.deepcopy(gan.generator)
    return {
        "say which one state_dict() is for by model=…": message_of(quelea.state_dict),
        "say which one global_step() is for": message_of(quelea.global_step),
        "the model given to state_dict() is not wrapped": message_of(lambda: quelea.state_dict(stranger)),
        "this model is wrapped already": message_of(
            lambda: quelea.wrap(gan.generator, gan.optimizers[0])
        ),
        "belongs to another wrapped model": message_of(
            lambda: quelea.wrap(both, torch.optim.SGD(both.parameters()))
        ),
    }


def test_wrong_use_of_several_models_says_what_to_do():
    for expected, message in launch(1, wrong_uses)[0].items():
        assert expected in message, message
