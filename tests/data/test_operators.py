"""Where an operation of a chain was written: its author's file and line."""

from pathlib import Path

import numpy as np

import csrun
from csrun.data import Dataset


def line_of(mark: str) -> int:
    """The number of the only line of this file that ends with a comment."""
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
