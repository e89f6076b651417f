"""The table of refusals in docs/pytorch.md: a script for each row, run in this process.

tests/job/test_torch_refusals.py runs the same in jobs.
"""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.refusals import PYTHON, WAYS, fault_of, messages_of_the_page, refusals  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402

SCRIPTS = refusals().values()


def test_each_row_has_a_script():
    assert {each.row for each in SCRIPTS} == messages_of_the_page().keys()
    assert {way for each in SCRIPTS for way in each.elsewhere} < {*WAYS}


@pytest.mark.parametrize("refusal", SCRIPTS, ids=lambda refusal: refusal.name)
@pytest.mark.usefixtures("kept_compiles")
def test_a_script_is_refused_with_its_line(tmp_path, refusal):
    if PYTHON in refusal.elsewhere:
        refusal.provoke(tmp_path)
        return
    with pytest.raises(UsageError) as error:
        refusal.provoke(tmp_path)
    assert not fault_of(refusal, str(error.value))
