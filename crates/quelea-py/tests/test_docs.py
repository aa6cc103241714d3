"""Examples of the documentation run, its lists are true, and the type stubs are complete."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from pathlib import Path

import pytest
import test_use
import torch
from group import launch

import quelea
import quelea._algorithm
import quelea._balance
import quelea._checkpoint
import quelea._elastic
import quelea._progress
import quelea._results
import quelea._schedulers
import quelea._tensor_calls
import quelea._windows
import quelea.simulation
import quelea.torch
from quelea import _core, _session
from quelea._turn import Turn

MODULES = (
    quelea._algorithm,
    quelea._balance,
    quelea._checkpoint,
    quelea.torch,
    quelea.simulation,
    quelea._elastic,
    quelea._progress,
    quelea._results,
    quelea._schedulers,
    quelea._tensor_calls,
    quelea._windows,
)
EXAMPLES = [
    test
    for module in MODULES
    for test in doctest.DocTestFinder(exclude_empty=True).find(module)
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_of_docstrings_run(example):
    def work(rank):
        said: list[str] = []
        doctest.DocTestRunner(verbose=False).run(example, out=said.append)
        return "".join(said)

    # A process is in one group only.
    assert launch(1, work) == [""]


def test_every_public_function_has_an_example():
    shown = {test.name.rpartition(".")[2] for test in EXAMPLES}
    public = set(quelea.torch.__all__) - {"Error", "Left"} | {"open_run", "simulate"}
    assert public <= shown


def parameters(function: object) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]  # type: ignore[arg-type]


def test_the_stubs_have_the_names_and_parameters_of_the_module():
    stubs = ast.parse((Path(quelea.__file__).parent / "_core.pyi").read_text()).body
    declared = {
        node.name: node for node in stubs if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    assert set(declared) | {"__version__"} == set(_core.__all__)
    for name, node in declared.items():
        there = getattr(_core, name)
        if isinstance(node, ast.FunctionDef):
            assert [a.arg for a in node.args.args] == parameters(there), name
            continue
        methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef)}
        assert set(methods) - {"__init__"} == {
            key for key in vars(there) if not key.startswith("__")
        }, name
        for method in methods.values():
            attribute = there if method.name == "__init__" else getattr(there, method.name)
            if callable(attribute):
                words = [a.arg for a in method.args.args if a.arg != "self"]
                assert words == parameters(attribute), f"{name}.{method.name}"


PAGE = Path(__file__).parents[3] / "docs" / "python.md"
ALGORITHMS = [name for name, _, _ in quelea.algorithms()]
#: How the page describes the optimizer's step, and the turns that mean it.
STEPS = {
    "a step on the averaged gradient": {Turn.APPLY},
    "a step in place": {Turn.APPLY},
    "a displacement": {Turn.DISPLACE, Turn.APPLY_AND_REPORT},
    "nothing": {Turn.SERVED},
}


def names_in(text: str) -> set[str]:
    """The algorithms that a text of the page names."""
    return set(re.findall(r"`([a-z0-9-]+)`", text)) & set(ALGORITHMS)


def turn_after_backward(rank, algorithm):
    quelea.torch.init()
    model = torch.nn.Linear(3, 2)
    properties = _core.properties({"algorithm": {"name": algorithm}})
    momentum = 0.0 if properties.refuses_momentum else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    quelea.torch.wrap(model, optimizer, algorithm)
    loss = model(torch.ones(1, 3)).sum()
    quelea.torch.report_loss(loss)
    loss.backward()
    turn = _session.sessions[0].active.cycle.turn
    optimizer.step()
    quelea.torch.shutdown()
    return turn.name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_page_says_what_the_optimizers_step_is(algorithm):
    rows = [line.split(" | ", 1) for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    described = [
        turns
        for names, meaning in (row for row in rows if len(row) == 2)
        for start, turns in STEPS.items()
        if meaning.startswith(start) and algorithm in names_in(names)
    ]
    assert len(described) == 1, "the page has every algorithm once"
    for name in launch(2, turn_after_backward, algorithm):
        assert Turn[name] in described[0]


def test_the_page_names_the_algorithms_whose_resumed_runs_are_tested():
    (sentence,) = re.findall(r"\nWith ([^.]*), the resumed run", PAGE.read_text())
    assert names_in(sentence) == set(test_use.RESUMED)


def test_no_file_of_the_package_knows_an_algorithm_by_name():
    found = []
    for file in sorted(Path(quelea.__file__).parent.glob("*.py")):
        tree = ast.parse(file.read_text())
        # Text that is an expression by itself is documentation.
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in texts
            ):
                # Functions may be named like an algorithm: they have brackets or longer names.
                words = re.findall(r"(?<!\w)[a-z0-9]+(?:-[a-z0-9]+)*(?![\w(])", node.value)
                found += [(file.name, name) for name in set(words) & set(ALGORITHMS)]
    # A name in __all__, and the default of wrap().
    assert found == [("torch.py", "allreduce")] * 2
