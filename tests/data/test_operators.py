"""Stages of a chain: the file and line that created each, and their times."""

from pathlib import Path

import numpy as np

import csrun
from csrun.data import Dataset
from csrun.data.input_operators import StageClock, StageTime


def line_of(mark: str) -> int:
    """Number of the only line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
    return number


def test_an_operation_names_the_line_of_the_users_call():
    chain = Dataset.from_arrays(np.arange(6))  # from arrays
    chain = chain.map(lambda x: x + 1)  # a map
    chain = chain.shuffle(seed=1).batch(  # two in a line
        2
    )
    wheres = [operator.where for operator in chain.operators]
    here = Path(__file__).name
    lines = [line_of("from arrays"), line_of("a map"), *(line_of("two in a line"),) * 2]
    assert wheres == [f"{here}:{line}" for line in lines]


def test_an_operation_that_csrun_adds_itself_names_no_line():
    inside = f"{csrun.__path__[0]}/estimator/estimator.py"
    code = compile("chain = Dataset.from_arrays(range(6)).batch(2)", inside, "exec")
    names = {"Dataset": Dataset}
    exec(code, names)
    assert [operator.where for operator in names["chain"].operators] == ["", ""]


def test_a_stage_may_begin_while_the_slowest_is_looked_for() -> None:
    """Stages run in several threads: one starts during the comparison."""
    clock = StageClock()

    class Compared(StageTime):
        @property  # type: ignore[override]
        def wall_s(self) -> float:
            clock.add("new", 3.0, 0.0)
            return 1.0

        @wall_s.setter
        def wall_s(self, value: float) -> None: ...

    clock.stages = {"first": Compared(), "second": StageTime(2.0)}
    found = clock.slowest()
    assert found is not None
    assert found[0] == "second"
