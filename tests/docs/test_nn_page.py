"""docs/nn.md lists exactly the names of csrun.nn; its examples can be traced."""

import re
from inspect import getmembers, isfunction
from types import ModuleType, SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from support.nn_examples import INPUTS
from support.nn_reference import examples, page_with, rendered
from support.pages import CHECKOUT, blocks, first_cells

from csrun import nn
from csrun.estimator import CSEstimatorSpec
from csrun.nn.tracer import Tracer

PAGE = CHECKOUT / "docs" / "nn.md"


def functions_of(module: ModuleType) -> set[str]:
    """Public functions of a module."""
    return {
        name
        for name, function in getmembers(module, isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


def public_names() -> set[str]:
    modules = {"initializers", "metrics", "summary"}
    names = {f"nn.{name}" for name in set(nn.__all__) - modules - {"schedules"}}
    for module in modules:
        names |= {f"nn.{module}.{name}" for name in functions_of(getattr(nn, module))}
    return names | {f"nn.schedules.{schedule.__name__}" for schedule in nn.schedules.SCHEDULES}


def test_the_page_names_exactly_the_public_names() -> None:
    named = first_cells(PAGE.read_text())
    assert sorted(named) == sorted(public_names())


def test_the_words_of_a_params_file_are_those_of_the_classes() -> None:
    words = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if line.startswith("| `nn.") and len(cells) == 3 and cells[1]:
            words[cells[0].rpartition(".")[2]] = cells[1]
    tagged = (*get_args(nn.Optimizer), *nn.schedules.SCHEDULES)
    assert words == {kind.__name__: kind.__struct_config__.tag for kind in tagged}


def test_the_example_can_be_traced_in_every_mode() -> None:
    script = next(block for block in blocks(PAGE.read_text()) if "def model_fn" in block)
    given = {"nn": nn, "CSEstimatorSpec": CSEstimatorSpec}
    exec(script, given)
    for mode in (nn.TRAIN, nn.EVAL, nn.PREDICT):
        with Tracer() as tracer:
            features = tracer.input("features", (8, 28, 28), "float32")
            labels = tracer.input("labels", (8,), "int32")
            spec = given["model_fn"](features, labels, mode, SimpleNamespace())
            outputs = list((spec.predictions or {}).items())
            tracer.finish(mode, spec.loss, spec.train_op, outputs)


#: What the reference has no example of.
TYPES_AND_MODES = {
    *("nn.Tensor", "nn.TrainOp", "nn.ShapeError", "nn.Optimizer"),
    *("nn.TRAIN", "nn.EVAL", "nn.PREDICT"),
}


def test_the_reference_is_that_of_the_code() -> None:
    text = PAGE.read_text()
    remedy = "run PYTHONPATH=tests python -m support.nn_reference"
    assert page_with(text, rendered()) == text, remedy


def test_the_reference_has_every_name() -> None:
    named = {f"nn.{name}" for name, _ in examples()}
    assert sorted(named) == sorted(public_names() - TYPES_AND_MODES)


EXAMPLES = dict(examples())


@pytest.mark.parametrize(("name", "text"), EXAMPLES.items(), ids=EXAMPLES)
def test_an_example_has_the_shapes_of_its_comments(name: str, text: str) -> None:
    lines = text.splitlines()
    assert len(lines) <= 3
    assert f"nn.{name}" in text
    with Tracer() as tracer:
        inputs = {each: tracer.input(each, *kind) for each, kind in INPUTS.items()}
        given = {"nn": nn, "np": np, **inputs}
        exec(text, given)
    for line in lines:
        if shown := re.search(r"(\w+) = .*# (\[.*\])$", line):
            assert str(list(given[shown[1]].shape)) == shown[2], line
