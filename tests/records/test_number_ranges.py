"""Value ranges against PyTorch's conversion to 16 bits, and the page that shows them."""

import re

import numpy as np
import pytest

from csrun.base.half_formats import BFLOAT16, FLOAT16, cbfloat16
from csrun.records.number_ranges import NumberRanges, page_of, ranges_of, write_page

VALUES = np.float32(
    [0, -0.0, 1, -2, 2.0**-15, 2.0**-24, -(2.0**-26), 65504, 65520, -1e30, np.inf, np.nan]
)


def test_shares_of_a_list_of_numbers():
    found = ranges_of("w", "weight", VALUES, FLOAT16)
    count = len(VALUES)
    assert (found.zeros, found.flushed) == (2 / count, 1 / count)
    assert (found.subnormals, found.overflows) == (2 / count, 4 / count)
    assert found.powers == {0: 1, 1: 1, -15: 1, -24: 1, -26: 1, 15: 2, 99: 1}


@pytest.mark.parametrize(("half", "name"), [(FLOAT16, "float16"), (BFLOAT16, "bfloat16")])
def test_shares_are_those_of_pytorchs_conversion(half, name):
    torch = pytest.importorskip("torch")
    drawn = np.random.default_rng(1)
    spread = np.exp2(drawn.uniform(-160, 140, 4000)) * drawn.choice([-1, 1], 4000)
    with np.errstate(over="ignore"):
        values = spread.astype(np.float32)
    found = ranges_of("w", "weight", values, half)
    theirs = torch.from_numpy(values).to(getattr(torch, name)).double().abs().numpy()
    smallest = torch.finfo(getattr(torch, name)).smallest_normal
    was_zero = values == 0
    assert found.zeros == np.mean(was_zero)
    assert found.flushed == np.mean((theirs == 0) & ~was_zero)
    assert found.subnormals == np.mean((theirs > 0) & (theirs < smallest))
    assert found.overflows == np.mean(~np.isfinite(theirs))
    assert sum(found.powers.values()) == np.count_nonzero(np.isfinite(values) & ~was_zero)


def test_the_most_damaged_tensor_comes_first(tmp_path):
    tensors = {
        "fine": [1.0, 2.0],
        "zero": [0.0, 1.0],
        "subnormal": [2.0**-32, 2.0**-32],
        "small": [2.0**-41, 1.0, 1.0],
        "<large>": [2.0**40, 1.0],
    }
    half = cbfloat16()
    found = [ranges_of(n, "gradient", np.float32(v), half) for n, v in tensors.items()]
    write_page(tmp_path, found, half, 7, 1024.0)
    page = (tmp_path / "number_ranges.html").read_text()
    places = [
        page.index(f"<td>{name}<")
        for name in ("&lt;large&gt;", "small", "subnormal", "zero", "fine")
    ]
    assert places == sorted(places)
    assert "step 7" in page
    assert "loss scale 1024" in page
    assert "from 2^-45 or less at the left to 2^37 or more at the right" in page
    assert page.count("<svg") == 5
    assert page.count('class="bar"') == 8


def test_a_small_share_does_not_read_as_zero():
    few = NumberRanges("few", "weight", zeros=0.0, flushed=3e-6, subnormals=1e-4, overflows=0.5)
    page = page_of([few], FLOAT16, 1, None)
    shares = re.findall(r"<td(?: class=.bad.)?>([^<]*%)", page)
    assert shares == ["50.00%", "&lt;0.01%", "0.01%", "0.00%"]


def test_events_have_the_shares():
    found = NumberRanges("a/b", "weight", zeros=0.1, flushed=0.2, subnormals=0.3, overflows=0.4)
    assert found.scalars() == {
        "ranges/weight/a/b/zeros": pytest.approx(0.3),
        "ranges/weight/a/b/subnormals": 0.3,
        "ranges/weight/a/b/overflows": 0.4,
    }


def test_a_tensor_without_numbers_has_no_damage():
    found = ranges_of("none", "weight", np.float32([]), FLOAT16)
    assert found.damage == (0, 0, 0, 0)
    assert page_of([found], FLOAT16, 1, None)
