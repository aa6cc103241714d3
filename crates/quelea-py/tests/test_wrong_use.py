"""Wrong use raises one exception that says what to do instead."""

from __future__ import annotations

import pytest
import torch
from group import launch, outcomes
from models import batch, make
from torch import nn
from torch.nn.functional import cross_entropy

import quelea.torch as quelea


def refusal(call) -> str:
    """The message of the error that `call` raised."""
    try:
        call()
    except (quelea.Error, ValueError, TypeError) as error:
        return str(error)
    return "nothing was refused"


def wrap(model=None, optimizer=None, algorithm="allreduce", **settings):
    model = model or make("mlp")
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return quelea.wrap(model, optimizer, algorithm, **settings), optimizer


def loss_of(model, number=0):
    inputs, targets = batch("mlp", 0, number)
    return cross_entropy(model(inputs), targets)


def before_init():
    return refusal(quelea.rank), refusal(lambda: wrap())


def test_everything_needs_init():
    for message in launch(1, lambda rank: before_init())[0]:
        assert "call quelea.init() first" in message


def initialized(work):
    def child(rank):
        quelea.init()
        return work()

    return launch(1, child)[0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"algorithm": "alladdin"}, 'did you mean "aladdin"?'),
        ({"algorithm": "aladdin", "alhpa": 0.5}, "did you mean `algorithm.alpha`?"),
        ({"algorithm": "aladdin", "alpha": "much"}, "alpha"),
        ({"algorithm": "d-psgd", "topology": "rign"}, 'did you mean "ring"?'),
        ({"codec": "int4"}, "codec.name"),
        ({"algorithm": "aladdin", "alpha": object()}, "must be a number"),
        (
            {"algorithm": "d-psgd", "server_optimizer": {"name": "sgd"}},
            "runs the optimizer at the workers",
        ),
        ({"algorithm": "aladdin", "payload": "gradient", "momentum": True}, "plain SGD"),
        ({"algorithm": "eamsgd", "momentum": True}, "Nesterov momentum of their own"),
        ({"algorithm": "local-sgd", "buffers": "average"}, 'use buffers="keep"'),
        ({"algorithm": "qg-dmsgd"}, "needs torch.optim.SGD with momentum"),
    ],
)
def test_wrong_settings_are_named_in_the_error(settings, expected):
    def work():
        given, optimizer, model = dict(settings), None, make("mlp")
        if given.pop("momentum", False):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return refusal(lambda: wrap(model, optimizer, **given))

    assert expected in initialized(work)


def test_unsupported_models_and_optimizers_are_refused():
    def work():
        other = torch.optim.SGD(make("mlp").parameters(), lr=0.1)
        frozen = make("mlp").requires_grad_(False)
        double = make("mlp").double()
        model, odd = make("mlp"), nn.Parameter(torch.zeros(3))
        more = torch.optim.SGD([*model.parameters(), odd], lr=0.1)
        rprop = torch.optim.Rprop(model.parameters())
        adam = torch.optim.Adam(model.parameters())
        empty = nn.ParameterList([nn.Parameter(torch.zeros(0))])
        return {
            "all parameters of the model are empty": refusal(lambda: wrap(empty)),
            "does not have the parameter `4.bias`": refusal(lambda: wrap(optimizer=other)),
            "nothing to train": refusal(
                lambda: wrap(frozen, torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
            ),
            "must be torch.float32": refusal(lambda: wrap(double)),
            "not the model's": refusal(lambda: wrap(model, more)),
            "do not have Rprop": refusal(lambda: wrap(model, rprop, "asp")),
            "adaptive optimizers have none": refusal(lambda: wrap(model, adam, "qg-dmsgd")),
            "would normalise a second time": refusal(lambda: wrap(model, adam, "d-amsgrad")),
        }

    for expected, message in initialized(work).items():
        assert expected in message, message


def test_calls_at_a_wrong_time_are_refused():
    def work():
        model, optimizer = wrap()
        found = {"init() was called before": refusal(quelea.init)}
        found["this model is wrapped already"] = refusal(lambda: wrap(model, optimizer))
        with quelea.no_sync():
            loss_of(model).backward()
        found["must be outside no_sync()"] = refusal(optimizer.step)
        optimizer.zero_grad()
        closure = lambda: loss_of(model)  # noqa: E731
        found["without a closure"] = refusal(lambda: optimizer.step(closure))
        first, second = loss_of(model), loss_of(model, 1)
        first.backward()
        found["no_sync():"] = refusal(second.backward)
        return found

    for expected, message in initialized(work).items():
        assert expected in message, message


def test_gradients_that_are_clipped_after_they_went_to_the_servers_are_refused():
    def work():
        model, optimizer = wrap(algorithm="sync-ps")
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return refusal(optimizer.step)

    assert "sync-ps sends them to its servers inside backward()" in initialized(work)


def test_parameters_of_another_type_are_refused_by_name():
    def work():
        model, _ = wrap()
        model[2].double()
        inputs, _ = batch("mlp", 0, 0)
        return refusal(model[2:4](model[:2](inputs).double()).sum().backward)

    assert "the parameter `2.bias` was torch.float32 on cpu at wrap()" in initialized(work)


def test_a_step_before_any_gradient_changes_nothing():
    def work():
        model, optimizer = wrap()
        optimizer.step()
        loss_of(model).backward()
        optimizer.step()
        quelea.shutdown()
        return True

    assert initialized(work)


def apart(rank, what):
    quelea.init()
    model = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 3 + (rank if what == "shape" else 0)))
    settings = {"period": 1 + rank} if what == "settings" else {}
    algorithm = "aladdin" if what == "settings" else "allreduce"
    if what == "calls" and rank == 1:
        return refusal(quelea.barrier)
    return refusal(lambda: wrap(model, algorithm=algorithm, **settings))


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("shape", ["parameter `1.bias` of shape (3,)", "rank 1 has the parameter `1.bias`"]),
        ("settings", ["'period': 1", "rank 1 has", "'period': 2"]),
        ("calls", ["rank 0 is at wrap(), but rank 1 at barrier()"]),
    ],
)
def test_ranks_that_disagree_all_receive_the_difference(what, expected):
    for message in launch(2, apart, what):
        assert all(part in message for part in expected), message


def test_a_rank_that_is_missing_at_init_is_named():
    def work(rank):
        return "absent" if rank == 1 else refusal(lambda: quelea.init(timeout=1.0))

    assert "rank 1 did not come to init()" in launch(2, work)[0]


def test_an_exception_at_one_rank_reaches_the_others_with_its_reason():
    import sys

    def work(rank):
        quelea.init()
        model, optimizer = wrap(on_loss="stop")
        for number in range(100):
            if rank == 1 and number == 3:
                try:
                    raise KeyError("column")
                except KeyError as error:
                    # As the interpreter does with an exception that nobody has caught.
                    sys.excepthook(type(error), error, error.__traceback__)
                    return "failed"
            loss = loss_of(model, number)
            message = refusal(loss.backward)
            if "nothing" not in message:
                return message
            optimizer.step()
            optimizer.zero_grad()
        return "never"

    results = outcomes(2, work)
    assert results[1] == (None, "failed")
    assert "rank 1" in results[0][1] and "KeyError: 'column'" in results[0][1]


def test_what_is_trained_is_fixed_at_wrap():
    def work():
        model = make("mlp")
        model[0].requires_grad_(False)
        model, optimizer = wrap(model)
        model[0].requires_grad_(True)
        loss_of(model).backward()
        thawed = refusal(optimizer.step)
        model[0].requires_grad_(False)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        return thawed, refusal(optimizer.step)

    thawed, added = initialized(work)
    assert "the parameter `0.weight` is trained now but was not at wrap()" in thawed
    assert "the parameter `?` is trained now but was not at wrap()" in added


def test_another_optimizer_is_refused():
    def work():
        model, _ = wrap(algorithm="ad-psgd")
        loss_of(model).backward()
        return refusal(torch.optim.Adam(model.parameters()).step)

    assert "another optimizer than the one given to wrap()" in initialized(work)


def test_a_forward_pass_before_the_step_is_named():
    def work():
        model, optimizer = wrap()
        loss = loss_of(model)
        loss.backward()
        loss_of(model)
        return refusal(optimizer.step)

    assert "a forward pass came between backward() and optimizer.step()" in initialized(work)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise MemoryError


def test_after_an_exception_inside_backward_the_error_says_why_the_run_cannot_continue():
    def work():
        model, _ = wrap(bucket_mb=1e-5)
        inputs, targets = batch("mlp", 0, 0)
        loss = cross_entropy(model[2:](Fails.apply(model[:2](inputs))), targets)
        try:
            loss.backward()
        except MemoryError:
            pass
        return refusal(lambda: model(inputs)), refusal(quelea.shutdown)

    for message in initialized(work):
        assert "an exception has ended the last backward pass" in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda group: group.update(momentum=0.5), "`momentum` of the optimizer was 0.9 at wrap()"),
        (lambda group: group.update(lr=0.2), "parameter groups with different `lr`"),
    ],
)
def test_optimizer_options_that_servers_do_not_follow_must_not_change(change, expected):
    def work():
        model = make("mlp")
        halves = [{"params": model[:2].parameters()}, {"params": model[2:].parameters()}]
        optimizer = torch.optim.SGD(halves, lr=0.1, momentum=0.9)
        wrap(model, optimizer, "sync-ps")
        loss_of(model).backward()
        optimizer.step()
        for group in optimizer.param_groups[: 1 if "lr" in expected else 2]:
            change(group)
        return refusal(loss_of(model).backward)

    assert expected in initialized(work)


def test_loading_parameters_that_would_be_mixed_with_older_ones_warns():
    def work():
        model, _ = wrap(algorithm="d-psgd")
        with pytest.warns(UserWarning, match="load before wrap"):
            model.load_state_dict(model.state_dict())
        return True

    assert initialized(work)


def comes_alone(rank, algorithm, call):
    quelea.init()
    model, optimizer = wrap(algorithm=algorithm)
    for number in range(20):
        if number == 5 and rank == 0:
            if call == "barrier":
                return refusal(quelea.barrier)
            with_mean = quelea.evaluate_model()
            return refusal(with_mean.__enter__)
        message = refusal(lambda: (loss_of(model, number).backward(), optimizer.step()))
        if "nothing" not in message:
            return message
    return refusal(quelea.shutdown)


@pytest.mark.parametrize("algorithm", ["allreduce", "d-psgd", "aladdin", "asp"])
@pytest.mark.parametrize("call", ["barrier", "evaluate_model"])
def test_a_rank_that_is_alone_in_a_collective_call_is_named(algorithm, call):
    for message in launch(2, comes_alone, algorithm, call, limit=30):
        assert "rank 0 is in a call that all ranks must make together" in message
