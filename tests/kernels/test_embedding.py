"""Embedding lookups on preallocated arrays, against PyTorch."""

import numpy as np
import pytest

from csrun.kernels import embedding

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of embedding")


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("indices", [[], [4], [2, 2, 2], [0, 4, 2, 4, 2, 4, 0]])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_rows_and_the_sums_of_their_gradients(indices, padding, kind):
    random = np.random.default_rng(len(indices))
    table, grad = random.standard_normal((5, 3)), random.standard_normal((len(indices), 3))
    numbers = np.array(indices, kind)
    out, slopes = np.empty_like(grad), np.full_like(table, np.nan)
    embedding.lookup(table, numbers, out)
    count = len(indices)
    own = np.empty_like(grad), np.empty((3, count), np.int64), np.empty(count, bool)
    scatter = embedding.Scatter(np.arange(count), *own)
    embedding.add_up(grad, numbers, slopes, scatter, padding)
    ids, peer = torch.from_numpy(numbers), torch.from_numpy(table)
    np.testing.assert_array_equal(out, torch.nn.functional.embedding(ids, peer))
    expected = torch.ops.aten.embedding_dense_backward(
        torch.from_numpy(grad), ids, 5, padding, False
    )
    np.testing.assert_allclose(slopes, expected, rtol=1e-12, atol=0)
    adding = scatter._replace(sums=np.empty_like(grad))
    embedding.add_up(grad, numbers, slopes, adding, padding)
    np.testing.assert_allclose(slopes, 2 * expected, rtol=1e-12, atol=0)
