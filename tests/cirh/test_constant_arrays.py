"""Constants: small ones in the module's text, large ones in files next to the program."""

import numpy as np
import pytest
from xdsl.rewriter import InsertPoint

from csrun.base.array_digests import digest_of, file_of
from csrun.base.errors import CsrunError
from csrun.base.mode import RunMode
from csrun.cirh import Builder, new_module, parse_module, print_module
from csrun.cirh.ops.constant_arrays import MOST_TEXT_BYTES, ConstantOp
from csrun.cirh.types import tensor_type
from csrun.kernels.constants import loaded


def module_of(array):
    module = new_module("float32", RunMode.EVAL)
    kind = tensor_type(array.shape, array.dtype.name)
    builder = Builder(InsertPoint.at_end(module.body.block))
    builder.leaf(ConstantOp, kind, values=ConstantOp.packed(array))
    module.verify()
    return module


@pytest.mark.parametrize("size", [16, MOST_TEXT_BYTES // 4, MOST_TEXT_BYTES])
def test_a_constant_has_its_values_whatever_its_size(size):
    array = np.random.default_rng(1).standard_normal((size // 4, 4)).astype("float32")
    (op,) = module_of(array).ops
    np.testing.assert_array_equal(op.array(), array)


def test_the_text_of_a_large_constant_is_short_and_tells_arrays_apart():
    first = np.arange(100_000, dtype="float32")
    last, turned = first.copy(), first.reshape(250, 400)
    last[-1] = 0
    texts = [print_module(module_of(array)) for array in (first, last, turned)]
    assert len(set(texts)) == 3
    assert max(map(len, texts)) < 500
    for text in texts:
        read = parse_module(text)
        read.verify()
        assert print_module(read) == text
    (op,) = read.ops
    with pytest.raises(ValueError, match="has its digest only"):
        op.array()


def test_a_file_is_read_only_with_the_bytes_of_its_digest(tmp_path):
    array = np.arange(6.0).reshape(2, 3)
    path, program = tmp_path / file_of(digest_of(array)), str(tmp_path / "program.py")
    np.save(path, array)
    np.testing.assert_array_equal(loaded(program, digest_of(array)), array)
    np.save(path, array.reshape(3, 2))
    with pytest.raises(CsrunError, match="changed since the compile; remove its folder"):
        loaded(program, digest_of(array))
    path.unlink()
    with pytest.raises(CsrunError, match="No such file"):
        loaded(program, digest_of(array))
