"""Text cases: good/*.mlir round-trip through the printer; bad/*.mlir are refused with a message.

The first line of a bad case has the expected part of the message after `// expect:`.
"""

from pathlib import Path

import pytest
from xdsl.utils.exceptions import ParseError, VerifyException

from csrun.base.mode import RunMode
from csrun.cirh import parse_module, precision_of, print_module, run_mode_of
from csrun.cirh.dialect import FAMILIES

HERE = Path(__file__).parent
GOOD = sorted(HERE.glob("good/*.mlir"))
BAD = sorted(HERE.glob("bad/*.mlir"))


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_a_module_prints_as_it_was_read(path):
    text = path.read_text()
    module = parse_module(text, path.name)
    module.verify()
    assert print_module(module) == text


@pytest.mark.parametrize("path", GOOD, ids=lambda p: p.stem)
def test_a_module_prints_as_xdsl_prints_it(path):
    module = parse_module(path.read_text(), path.name)
    assert print_module(module) == str(module) + "\n"


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.stem)
def test_a_bad_module_is_refused(path):
    text = path.read_text()
    expected = text.partition("\n")[0].removeprefix("// expect: ")
    with pytest.raises((ParseError, VerifyException)) as caught:
        parse_module(text, path.name).verify()
    assert expected in str(caught.value)


def test_every_operator_is_in_a_text_case():
    text = "".join(path.read_text() for path in GOOD)
    names = [op.name for family in FAMILIES for op in family.OPS]
    assert [name for name in names if f"{name} " not in text] == []


def test_the_module_says_its_precision_and_its_mode():
    module = parse_module((HERE / "good" / "training.mlir").read_text())
    assert precision_of(module) == "float32"
    assert run_mode_of(module) is RunMode.TRAIN
