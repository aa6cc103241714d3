"""Algorithms in Python: the examples against the built-in ones, lifetimes of views, errors, checkpoints."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import traceback
from pathlib import Path

import numpy
import pytest
import torch
from group import launch, outcomes
from models import batch, make
from torch.nn.functional import cross_entropy

import quelea
import quelea.torch
from quelea import _core, _session

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/python/algorithms"
sys.path.insert(0, str(EXAMPLES))

from allreduce import AllReduce  # noqa: E402
from d_psgd import DPsgd  # noqa: E402
from damped_gossip import DampedGossip  # noqa: E402

#: Small, so that the model has several buckets.
BUCKET_MB = 0.001
SAMPLES = [batch("mlp", 0, step) for step in range(16)]
DATA = [(x, y) for xs, ys in SAMPLES for x, y in zip(xs, ys, strict=True)]


def loss(model, data):
    return cross_entropy(model(data[0]), data[1])


class Interrupted(Exception):
    """The run was ended from outside."""


def simulated(algorithm, workers=4, steps=12, topology="ring", cluster=None, end_at=None, **more):
    """The losses of all gradients in order, and the summary; ends with an exception at a step."""
    losses = []

    def watch(rank, step, value):
        if step == end_at:
            raise Interrupted
        losses.append((rank, step, value))

    config = {
        "workers": workers,
        "steps": steps,
        "algorithm": algorithm,
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "buckets": {"size_mb": BUCKET_MB},
        "cluster": {"hosts": workers, "compute_ms": 5.0, **(cluster or {})},
        **({"topology": {"name": topology}} if topology else {}),
        **more.pop("config", {}),
    }
    summary = quelea.simulate(lambda: make("mlp"), loss, DATA, config, batch=8, watch=watch, **more)
    return losses, summary


class Alone(quelea.Algorithm):
    """Every worker trains alone."""

    def on_bucket(self, cx, b):
        cx.optimize(b)

    def on_message(self, cx, sender, message):
        raise AssertionError("nobody sends")

    def is_ready(self):
        return True


def test_the_examples_are_as_short_as_they_say():
    for name, most in [("allreduce", 20), ("d_psgd", 30), ("damped_gossip", 33)]:
        text = (EXAMPLES / f"{name}.py").read_text()
        body = text[text.index("class ") :].split("\nif __name__")[0]
        lines = [line for line in body.splitlines() if line.strip() and not line.strip().startswith("#")]
        assert len(lines) <= most, (name, len(lines))


def test_allreduce_in_python_has_the_bits_of_the_built_in_one():
    ours, own = simulated(AllReduce, topology=None)
    theirs, built_in = simulated({"name": "allreduce"}, topology=None)
    assert ours == theirs and len(ours) == 48
    assert own["loss"] == built_in["loss"] and own["loss"] < ours[0][2]


@pytest.mark.parametrize("topology", ["ring", "complete", "one-peer-exponential"])
def test_d_psgd_in_python_has_the_bits_of_the_built_in_one(topology):
    ours, own = simulated(DPsgd(), topology=topology)
    theirs, built_in = simulated({"name": "d-psgd"}, topology=topology)
    assert ours == theirs and own["loss"] == built_in["loss"]


def test_gossip_of_tensors_is_adapt_then_combine_at_the_rate_one():
    ours, _ = simulated(DampedGossip(gamma=1.0))
    theirs, _ = simulated({"name": "d-psgd", "form": "adapt-then-combine"})
    assert ours == theirs
    damped, _ = simulated({"name": DampedGossip, "gamma": 0.25})
    assert damped != ours


def test_a_worker_that_is_lost_is_not_waited_for_and_an_algorithm_without_on_view_says_so():
    crash = {"faults": {"crashes": [{"rank": 2, "at_ms": 30.0}]}}
    ours, own = simulated(DPsgd, cluster=crash)
    theirs, built_in = simulated({"name": "d-psgd"}, cluster=crash)
    assert ours == theirs and own["loss"] == built_in["loss"]
    assert max(step for rank, step, _ in ours if rank == 2) < 11
    with pytest.raises(quelea.Error, match=r"are \[0, 1, 3\] now, and AllReduce has no on_view"):
        simulated(AllReduce, topology=None, cluster=crash)


# Under wrap().


def wrapped(rank, algorithm, topology, steps=10, **settings):
    quelea.torch.init()
    model = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings |= {"topology": topology, "bucket_mb": BUCKET_MB}
    quelea.torch.wrap(model, optimizer, algorithm, **settings)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, batch("mlp", rank, step)).backward()
        optimizer.step()
    quelea.torch.shutdown()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(
    ("own", "built_in", "topology"),
    [(AllReduce, "allreduce", None), (DPsgd(), "d-psgd", "ring")],
    ids=["allreduce", "d-psgd"],
)
def test_under_wrap_the_examples_have_the_bits_of_the_built_in_ones(own, built_in, topology):
    ours = launch(3, wrapped, own, topology)
    theirs = launch(3, wrapped, built_in, topology)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_new_algorithm_trains_in_simulation_and_under_wrap():
    def work(rank, *words):
        sys.argv = ["train.py", *words]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile((EXAMPLES / "train.py").read_text(), "train.py", "exec"), {"__name__": "__main__"})
        return printed.getvalue()

    for processes, words in [(3, ()), (1, ("--simulate",))]:
        said = launch(processes, work, *words)[0]
        assert float(said.split("loss ")[1].split()[0]) < 0.2, said


# Views.


class Inspected(Alone):
    """Runs a function in `on_bucket`."""

    name, inspect = "inspected", staticmethod(lambda self, cx, b: None)

    def on_bucket(self, cx, b):
        self.inspect(self, cx, b)
        cx.optimize(b)


def inspected(inspect, **more):
    Inspected.inspect = staticmethod(inspect)
    return simulated(Inspected, workers=1, steps=2, topology=None, **more)


def test_views_are_the_memory_of_the_rank():
    def work(rank):
        seen = []

        def inspect(self, cx, b):
            start = 4 * _session.sessions[0].active.buckets[b][0]
            vectors = _session.sessions[0].active.vectors
            places = (vectors.params.address + start, vectors.grads.address + start)
            seen.append((cx.params[b].data_ptr(), cx.grad[b].data_ptr()) == places)
            cx.grad[b].zero_()

        Inspected.inspect = staticmethod(inspect)
        before = torch.cat([p.detach().reshape(-1) for p in make("mlp").parameters()])
        return seen, torch.equal(wrapped(rank, Inspected, None, 3), before)

    ((seen, is_unchanged),) = launch(1, work)
    assert len(seen) > 3 and all(seen) and is_unchanged


@pytest.mark.parametrize("which", ["params", "grad"])
def test_a_view_that_is_kept_raises_and_its_memory_stays(which):
    kept = []

    def inspect(self, cx, b):
        kept.append(getattr(cx, which)[b][2:5])

    with pytest.raises(quelea.Error, match=rf"view of cx.{which} was kept .*clone") as raised:
        inspected(inspect)
    assert "Inspected.on_bucket" in "".join(traceback.format_exception(raised.value))
    # Memory that was freed would be given to these.
    rubbish = [torch.full((size,), 7.0) for size in range(1, 2000)]
    kept[0].add_(1.0)
    assert len(rubbish) and not (kept[0] == 8.0).any()


def test_a_view_in_a_cycle_that_nobody_reaches_is_not_kept():
    def inspect(self, cx, b):
        cycle = [cx.params[b]]
        cycle.append(cycle)

    inspected(inspect)


def test_a_context_that_is_kept_raises():
    kept = []

    def inspect(self, cx, b):
        if kept:
            kept[0].step  # The same object for the whole run: it leads to this event.
        kept.append(cx)

    inspected(inspect)
    with pytest.raises(quelea.Error, match="after its event has returned"):
        kept[0].step


def test_tensors_of_a_message_are_its_own():
    """Two receivers of one message: what one does to it the other does not see."""

    class Doubling(quelea.Algorithm):
        """Rank 0 sends one message to all."""

        topology, seen = "mixing", {}

        def on_start(self, cx):
            self.missing = cx.rank != 0
            if cx.rank == 0:
                message = cx.message(torch.ones(3), kind=3, scalar=0.5, seq=9)
                for rank in cx.workers[1:]:
                    cx.send(rank, message)
                message.values.fill_(5.0)

        def on_message(self, cx, sender, message):
            message.values.mul_(2)
            message.values.add_(1)
            self.missing = False
            self.seen[cx.rank] = (sender, message.values, message.kind, message.scalar, message.seq)

        def on_bucket(self, cx, b):
            cx.optimize(b)

        def is_ready(self):
            return not self.missing

    simulated(Doubling, steps=1)
    assert sorted(Doubling.seen) == [1, 2, 3]
    for sender, values, *rest in Doubling.seen.values():
        assert (sender, values.tolist(), rest) == (0, [3.0, 3.0, 3.0], [3, 0.5, 9])


def test_arrays_of_numpy_do_as_well():
    class OfArrays(DampedGossip):
        """The same with arrays."""

        name, tensors = "of-arrays", "numpy"

        def mix(self, cx, b):
            others = {rank: weight for rank, weight in cx.incoming() if rank != cx.rank}
            theirs = self.received.get((cx.step, b), {})
            if b in self.sent and not others.keys() - theirs.keys():
                own = cx.params[b].copy()
                assert isinstance(own, numpy.ndarray)
                for rank, weight in others.items():
                    cx.params[b][:] += (theirs[rank].values - own) * numpy.float32(self.gamma * weight)
                self.sent.remove(b)
                self.pending -= 1

    ours, _ = simulated(OfArrays)
    theirs, _ = simulated(DampedGossip)
    assert [x[2] for x in ours] == pytest.approx([x[2] for x in theirs], rel=1e-5)


# Errors.


def test_an_exception_in_an_event_is_raised_with_its_traceback_and_the_event():
    def inspect(self, cx, b):
        return {}["missing"]

    with pytest.raises(KeyError, match="missing") as raised:
        inspected(inspect)
    text = "".join(traceback.format_exception(raised.value))
    assert "in on_bucket" in text and 'return {}["missing"]' in text
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["raised in test_own_algorithm.Inspected.on_bucket"]


def test_under_wrap_the_rank_that_failed_raises_its_exception_and_the_others_name_it():
    class Failing(AllReduce):
        """Fails at one rank."""

        name = "failing"

        def on_message(self, cx, sender, message):
            if cx.step == 3 and cx.rank == 1:
                raise LookupError("no such thing")
            super().on_message(cx, sender, message)

    def stopping(rank):
        return wrapped(rank, Failing, None, on_loss="stop")

    results = outcomes(3, stopping)
    failures = [failure for failure, _ in results]
    assert "LookupError: no such thing" in failures[1] and "in on_message" in failures[1]
    for other in (failures[0], failures[2]):
        assert "Failing.on_message raised LookupError: no such thing" in other and "rank 1" in other


class Mixing(quelea.Algorithm):
    """Every worker sends one vector to all others, in the order that is worst for it."""

    topology, mixed = "mixing", {}

    def on_start(self, cx):
        self.came = {}
        for rank in reversed(cx.workers):
            if rank != cx.rank:
                cx.send(rank, cx.message(torch.full((4,), 0.1 + cx.rank)))

    def on_bucket(self, cx, b):
        cx.optimize(b)

    def on_message(self, cx, sender, message):
        # A message that was looked at, one that was not, and a tensor.
        looked_at = message.values if sender != 2 else None
        self.came[sender] = looked_at.clone() if sender == 3 else message
        if len(self.came) == 3:
            own = torch.full((4,), 0.1 + cx.rank)
            cx.mix(own, {3: 0.4, 1: 0.2, 0: 0.1, 2: 0.3}, self.came)
            self.mixed[cx.rank] = own

    def is_ready(self):
        return True


def test_mix_adds_messages_and_tensors_in_the_order_of_ranks():
    Mixing.mixed.clear()
    simulated(Mixing, steps=1)
    weights = numpy.float32([0.1, 0.2, 0.3, 0.4])
    expected = numpy.float32(0.0)
    for rank, weight in enumerate(weights):
        term = weight * numpy.float32(0.1 + rank)
        expected = term if rank == 0 else expected + term
    assert len(Mixing.mixed) == 4
    assert all((own.numpy() == expected).all() for own in Mixing.mixed.values())


WRONG = {
    "a weight without a vector": (
        lambda self, cx, b: cx.mix(cx.params[b], {0: 0.5, 3: 0.5}, {2: cx.params[b]}),
        quelea.Error,
        r"rank 3 has a weight and no vector; there are vectors of \[2\]",
    ),
    "a mix with itself": (
        lambda self, cx, b: cx.mix(cx.params[b], {0: 0.5, 3: 0.5}, {3: cx.params[b]}),
        quelea.Error,
        "the vector of rank 3 lies in the memory that is written: pass a clone",
    ),
    "a mix of another length": (
        lambda self, cx, b: cx.mix(cx.params[b], {0: 0.5, 3: 0.5}, {3: torch.ones(3)}),
        quelea.Error,
        "the vector of rank 3 has 3 elements, and this worker's own",
    ),
    "a mix without a vector": (
        lambda self, cx, b: cx.mix(cx.params[b], {0: 0.5, 3: 0.5}, {3: cx.message()}),
        quelea.Error,
        "the message of rank 3 has no vector",
    ),
    "no such bucket": (lambda self, cx, b: cx.grad[99], IndexError, "bucket 99: there are"),
    "no topology": (
        lambda self, cx, b: cx.incoming(),
        quelea.Error,
        'declare topology = "mixing"',
    ),
    "nobody there": (
        lambda self, cx, b: cx.send(7, cx.message()),
        quelea.Error,
        r"cx.send\(7, …\) at rank 0: must be another rank that is alive",
    ),
    "a wrong mode": (lambda self, cx, b: cx.optimize(b, "aply"), quelea.Error, 'the mode is "apply"'),
    "a list": (lambda self, cx, b: cx.message([1.0]), quelea.Error, "list is no vector"),
    "doubles": (
        lambda self, cx, b: cx.message(torch.ones(2, dtype=torch.float64)),
        quelea.Error,
        r"torch.float64 on cpu.*\.float\(\)",
    ),
    "a stride": (
        lambda self, cx, b: cx.message(torch.ones(4)[::2]),
        quelea.Error,
        r"not contiguous: call \.contiguous\(\)",
    ),
    "another length": (
        lambda self, cx, b: (a := quelea.Average(), a.enter(cx), a.start(cx, b, torch.ones(3))),
        ValueError,
        "a vector of 3 elements for bucket 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_in_an_event_says_what_to_do(case):
    inspect, kind, text = WRONG[case]
    with pytest.raises(kind, match=text):
        inspected(inspect)


def test_vectors_that_are_being_computed_on_are_refused():
    class Early(Alone):
        """Touches its parameters while its gradient is computed."""

        def on_start(self, cx):
            for rank in cx.workers[1:] if cx.rank == 0 else ():
                cx.send(rank, cx.message())

        def on_message(self, cx, sender, message):
            assert cx.computing
            cx.params[0].zero_()

    text = r"cx.params\[0\] is not the algorithm's now.*from on_bucket\(cx, 0\) until is_ready"
    with pytest.raises(quelea.Error, match=text):
        simulated(Early, topology=None)


def made(**attributes):
    methods = {"on_message": lambda *_: None, "is_ready": lambda _: True}
    return type("Made", (quelea.Algorithm,), {**methods, **attributes})


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        (type("Empty", (quelea.Algorithm,), {}), r"Empty must define on_message\(self, cx, sender"),
        (made(is_ready=quelea.Algorithm.is_ready), r"Made must define is_ready\(self\)"),
        (made(name="allreduce"), "the name `allreduce` is already taken"),
        (made(name="Not A Name"), "lower-case letters, digits and hyphens"),
        (made(tensors="jax"), 'must be "torch" or "numpy"'),
        (made(topology="torus"), 'topology = "torus": must be None, "mixing"'),
        (made(awaits="now"), 'awaits = "now": must be "after-gradient"'),
        (made(options={"rate": "fast"}), "the option `rate` = fast: a default is"),
        (made(options={"python": 1}), "`python` is declared twice or reserved"),
        (int, "must be a subclass of quelea.Algorithm"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_class_that_cannot_be_registered_says_why(algorithm, text):
    with pytest.raises((quelea.Error, ValueError), match=text):
        quelea.register(algorithm)


def test_options_are_checked_as_those_of_built_in_algorithms():
    options = {"period": 4, "rate": 0.5, "late": False, "form": ["first", "second"]}
    algorithm = made(options=options, on_bucket=lambda self, cx, b: cx.optimize(b), name="optioned")
    given = algorithm(period=2, form="second")
    assert (given.period, given.rate, given.late, given.form) == (2, 0.5, False, "second")
    _, summary = simulated(given, workers=1, steps=1, topology=None)
    kept = summary["config"]["algorithm"]
    assert kept["name"] == "optioned" and kept["period"] == 2 and kept["form"] == "second"
    with pytest.raises(TypeError, match="Made has no option perod: its options are period, rate"):
        simulated({"name": algorithm, "perod": 2}, workers=1, steps=1)
    with pytest.raises(ValueError, match="must be a whole number"):
        simulated({"name": algorithm, "period": 2.5}, workers=1, steps=1)
    with pytest.raises(ValueError, match="must be one of first, second"):
        simulated(algorithm(form="third"), workers=1, steps=1)


def test_a_class_that_is_defined_again_replaces_the_older_one():
    """As in a notebook."""
    results = []
    for factor in (0.0, 1.0):

        class Scaled(Alone):
            """Scales its gradient."""

            scale = factor

            def on_bucket(self, cx, b):
                cx.grad[b].mul_(self.scale)
                cx.optimize(b)

        results.append(simulated(Scaled, workers=1, topology=None)[0])
    assert len({value for rank, step, value in results[0] if step % 16 == 0}) == 1
    assert results[0] != results[1]
    assert [name for name, _, _ in quelea.algorithms()].count("scaled") == 1


# Checkpoints.


class Momentum(Alone):
    """Adds a moving mean of gradients, with a state of every type."""

    name, state = "momentum", ("velocity", "count", "mean", "is_odd")

    def __init__(self):
        super().__init__()
        self.velocity, self.count, self.mean, self.is_odd = None, 0, 0.0, False

    def on_start(self, cx):
        if self.velocity is None:
            self.velocity = torch.zeros(cx.params.flat.numel())

    def on_gradient(self, cx):
        self.count += 1
        self.is_odd = not self.is_odd
        self.mean += (cx.loss - self.mean) / self.count
        self.velocity.mul_(0.5).add_(cx.grad.flat)
        cx.grad.flat.copy_(self.velocity).mul_(1.0 + self.mean + self.is_odd)
        for b in range(cx.buckets):
            cx.optimize(b)

    def on_bucket(self, cx, b):
        pass


def test_a_run_resumes_from_the_state_that_the_class_names(tmp_path):
    settings = {"workers": 2, "topology": None, "config": {"checkpoint": {"every": 4}}}
    whole, _ = simulated(Momentum, out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        simulated(Momentum, out=tmp_path / "parts", end_at=6, **settings)
    rest, summary = simulated(Momentum, resume=tmp_path / "parts", **settings)
    assert summary["resumed_from_step"] == 4
    assert rest == whole[-len(rest) :] and len(rest) == 2 * 8
    final = [(tmp_path / run / "final.safetensors").read_bytes() for run in ("whole", "parts")]
    assert final[0] == final[1]


def test_a_state_of_another_type_says_what_to_do(tmp_path):
    algorithm = made(
        name="stateful", state=("rows",), rows=[1], on_bucket=lambda self, cx, b: cx.optimize(b)
    )
    with pytest.raises(quelea.Error, match="list is no vector"):
        simulated(algorithm, workers=1, topology=None, config={"checkpoint": {"every": 2}})


# The command.


def command(*words):
    script = str(EXAMPLES / "damped_gossip.py")
    done = subprocess.run(
        [sys.executable, script, *words], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_script_is_the_whole_command_with_one_algorithm_more(tmp_path):
    listed = command("list", "algorithms")
    assert "damped-gossip" in listed and "d-psgd" in listed
    run = ["--set", "algorithm.name=damped-gossip", "--set", "algorithm.gamma=0.5"]
    run += ["--set", "workers=3", "--set", "steps=20", "--json"]
    found = [
        json.loads(command(*driver, *run, "--out", str(tmp_path / str(k))))
        for k, driver in enumerate((["simulate"], ["train"], ["train", "--processes"]))
    ]
    assert found[0]["config"]["algorithm"]["python"] == "__main__.DampedGossip"
    for summary in found:
        # A machine that starves a process for half a minute loses a worker, and other bits follow.
        if not any("lost rank" in warning for warning in summary["warnings"]):
            assert summary["loss"] == found[0]["loss"], "the same bits in every driver"


def test_a_class_is_planned_and_compared_as_built_in_algorithms_are(tmp_path):
    plan = ["plan", "--model", "resnet-50", "--workers", "8", "--compute-ms", "100", "--json"]
    predictions = json.loads(command(*plan))["predictions"]
    steps = {p["algorithm"]: p["step_seconds"] for p in predictions if p["topology"] == "ring"}
    # One model to each neighbour, after the gradient, as decentlam.
    assert steps["damped-gossip"] == steps["decentlam"]
    settings = ["--set", "task.name=logistic", "--set", "workers=4", "--set", "steps=50", "--json"]
    words = ["compare", "--algorithms", "allreduce,damped-gossip", *settings]
    compared = command(*words, "--out", str(tmp_path / "both"))
    assert "damped-gossip" in compared and "allreduce" in compared, compared


@pytest.mark.parametrize("name", quelea.conformance_properties())
def test_a_new_algorithm_passes_the_suite_of_the_built_in_ones(name):
    quelea.conformance(DampedGossip, name)


def test_the_suite_names_what_does_not_hold():
    with pytest.raises(quelea.Error, match="survives_delays_and_lost_workers: .*AllReduce has no on_view"):
        quelea.conformance(AllReduce, "survives_delays_and_lost_workers")

    class Forgetful(DampedGossip):
        """Says that it exchanges two vectors, and sends one."""

        vectors = 2

    with pytest.raises(quelea.Error, match="Forgetful: sends_the_bytes_of_its_traffic: "):
        quelea.conformance(Forgetful, "is_described", "sends_the_bytes_of_its_traffic")
    with pytest.raises(ValueError, match="no property `fast`: there are is_described, learns"):
        quelea.conformance(Forgetful, "fast")


def test_the_command_of_the_package_has_the_exit_status_of_the_command():
    assert _core.command_line([], ["list", "codecs"]) == 0
    assert quelea.main(["simulate", "--set", "steps=none"]) == 2
