"""What the documentation shows runs, and the type stubs say what is there."""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path

import pytest
from group import launch

import quelea
import quelea.simulation
import quelea.torch
from quelea import _core

EXAMPLES = [
    test
    for module in (quelea.torch, quelea.simulation)
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
    public = set(quelea.torch.__all__) - {"Error"} | {"simulate"}
    assert public <= shown


def parameters(function: object) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]  # type: ignore[arg-type]


def test_the_stubs_have_the_names_and_parameters_of_the_module():
    stubs = ast.parse((Path(quelea.__file__).parent / "_core.pyi").read_text()).body
    declared = {node.name: node for node in stubs if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
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
