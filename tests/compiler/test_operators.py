"""Each case of the operator table in a compiled program, forward and backward, against PyTorch."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the operators")

from support.operators import CASES, FORWARD  # noqa: E402
from support.operators.cases import Case  # noqa: E402
from support.samples.running import Sample, Way, Written, compare, expected  # noqa: E402

from csrun.base.mode import ExecutionMode  # noqa: E402
from csrun.compiler import CompileError  # noqa: E402
from csrun.executable import machine_code  # noqa: E402
from csrun.nn.tensor import Tensor  # noqa: E402

CHUNK = 8  # cases of a program
FAMILIES = {
    family: list(own)
    for family, own in groupby(sorted(CASES, key=lambda case: case.family), lambda c: c.family)
}


@pytest.fixture(autouse=True)
def _no_texts(no_texts):
    """Skip the texts of hundreds of compiles."""


def emitted(case: Case, *operands: Tensor) -> Tensor:
    tracer = operands[0].tracer
    return Tensor(tracer, case.emit(tracer.builder, *(x.value for x in operands)))


def sample_of(case: Case) -> Sample:
    tensors = tuple(torch.from_numpy(np.array(a)) for a in case.operands)
    peer, ours = partial(case.peer, torch), partial(emitted, case)
    return Sample(peer, ours, (tensors, {}), has_gradient=case in FORWARD)


def programs(cases: Sequence[Case]) -> Iterator[tuple[Way, Sequence[Case]]]:
    forward = [case for case in cases if case in FORWARD]
    others = [case for case in cases if case not in FORWARD]
    for way, own in ((Way.ACTIVATIONS, forward), (Way.VIEWS, forward), (Way.INPUTS, others)):
        for at in range(0, len(own), CHUNK):
            yield way, own[at : at + CHUNK]


def check(cases: Sequence[Case], way: Way, root: Path, is_machine_code: bool = False) -> None:
    """Compare with PyTorch in float64: NumPy kernels in float64, or machine code in float32."""
    samples = [sample_of(case) for case in cases]
    if is_machine_code:
        written = Written([sample.single() for sample in samples], way, "float32")
        found = written.compiled(root, ExecutionMode.PIPELINED, "llvm", threads=3)
        tolerance = {"rtol": 2e-4, "atol": 2e-5}
    else:
        written = Written(samples, way, "float64")
        found = written.compiled(root, ExecutionMode.PIPELINED)
        tolerance = {"rtol": 1e-11, "atol": 1e-13}
    for number, (case, sample) in enumerate(zip(cases, samples, strict=True)):
        slope = written.slopes[number].astype("float64")
        (result,), gradients = expected(sample, way, slope)
        (ours,), given = found.results[number], found.gradients[number]
        if ours.dtype != written.precision:  # the loss does not have it
            gradients = {}
        for own, theirs in ((ours, result), *((given[i], g) for i, g in gradients.items())):
            if is_machine_code and (own.dtype, theirs.dtype) == ("float32", torch.float64):
                own = own.astype("float64")
            try:
                compare(own, theirs, tolerance)
            except AssertionError as error:
                raise AssertionError(f"{case}: {error}") from None


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_compute_what_pytorch_does(tmp_path, family):
    cases = [case for case in FAMILIES[family] if not case.not_compiled]
    for number, (way, own) in enumerate(programs(cases)):
        check(own, way, tmp_path / str(number))


@pytest.mark.slow
@pytest.mark.skipif(not machine_code.is_supported(), reason="machine code is built with llvmlite")
@pytest.mark.parametrize("family", FAMILIES)
def test_machine_code_computes_what_pytorch_does(tmp_path, family):
    cases = [case for case in FAMILIES[family] if not case.not_compiled]
    for number, (way, own) in enumerate(programs(cases)):
        check(own, way, tmp_path / str(number), is_machine_code=True)


@pytest.mark.parametrize("case", [c for c in CASES if c.not_compiled], ids=str)
def test_a_case_without_a_program_needs_its_reason(tmp_path, case):
    ways = (Way.ACTIVATIONS, Way.VIEWS) if case in FORWARD else (Way.INPUTS,)
    with pytest.raises((CompileError, AssertionError, IndexError, NameError, ValueError)):
        for way in ways:
            check([case], way, tmp_path / way.name)
