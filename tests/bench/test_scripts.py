"""The parts of `scripts/bench scripts` that decide: patches, messages, differences."""

import math
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
FOLDER = Path(__file__).parent / "scripts"
MODULES = ("case", "outcome", "sides", "sources", "patches", "hugging_face", "packages", "karpathy",
           "pytorch_examples", "tutorials")  # fmt: skip


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`import_module` with the benchmark's folder on the path, and its modules gone afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_block_is_indented_from_its_first_line_to_its_last(bench: Any) -> None:
    block = bench("case").Block(
        "with session:", "    for i in x:", "        if i:\n            break"
    )
    script = (
        "def f():\n    for i in x:\n        g(i)\n\n        if i:\n            break\n    h()\n"
    )
    assert block.apply(script) == (
        "def f():\n    with session:\n        for i in x:\n            g(i)\n\n            if i:\n"
        "                break\n    finish(model)\n    h()\n"
    )


def test_a_patch_of_a_script_that_has_changed_is_an_error(bench: Any) -> None:
    with pytest.raises(LookupError, match="no 'import torch"):
        bench("patches").setup().apply("import numpy\n")


def test_lines_beyond_the_four_are_those_for_csrun(bench: Any) -> None:
    case, patches = bench("case"), bench("patches")
    beyond = case.Patch("a\nb\n", "a\nc\nd\n", case.Purpose.FOR_CSRUN)
    found = case.Case("n", case.Package("p"), "s", patches={"s": (patches.setup(), beyond)})
    assert found.lines_beyond == 2


@pytest.mark.parametrize(
    ("errors", "line"),
    [
        ("warning: x\nerror: /tmp/csrun-bench-1/case/python/run.py:7: no\n", "error: run.py:7: no"),
        ("Traceback:\n  File x\nValueError: a\n", "ValueError: a"),
        ("", "no message"),
    ],
)
def test_the_first_error_of_a_run(bench: Any, errors: str, line: str) -> None:
    assert bench("sides").first_error(errors) == line


def test_losses_are_compared_by_step(bench: Any) -> None:
    outcome = bench("outcome")
    assert outcome.loss_difference([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert outcome.loss_difference([1.0], [1.0, 2.0]) == math.inf
    assert outcome.first_difference([1.0, 2.2], [1.0, 2.0]).startswith("step 2: 2.2")


def test_differences_within_pytorchs_own_noise_are_unstable(bench: Any) -> None:
    is_within = bench("outcome").is_within_noise
    plain, noisy = [1.0, 1.0, 1.0, 1.0], [[1.0, 1 + 1e-9, 1 + 1e-5, 1 + 1e-6]]
    assert is_within([1.0, 1 + 5e-8, 1 + 5e-4, 1 + 5e-4], plain, noisy)
    assert not is_within([1.0, 1 + 5e-7, 1.0, 1.0], plain, noisy), "more than a hundredfold"
    assert not is_within([1 + 1e-6, 1.0, 1.0, 1.0], plain, noisy), "before PyTorch differs"


def test_each_case_has_its_own_name_and_script(bench: Any) -> None:
    tables = ("hugging_face", "packages", "karpathy", "pytorch_examples", "tutorials")
    cases = [case for table in tables for case in bench(table).CASES]
    assert len({case.name for case in cases}) == len(cases) >= 55
    for case in cases:
        in_repository = not (FOLDER / case.script).exists() and case.script in case.source.paths
        assert in_repository or (FOLDER / case.script).exists()
        assert set(case.patches) <= set(getattr(case.source, "paths", ()))
