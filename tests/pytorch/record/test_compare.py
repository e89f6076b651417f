"""Comparison of a recording with many others."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import record, supervised  # noqa: E402
from torch import nn  # noqa: E402

from csrun.pytorch.record import compare  # noqa: E402


def batch(rows):
    return torch.ones(rows, 4), torch.zeros(rows, dtype=torch.long)


def test_a_recording_keeps_its_canonical_graph(monkeypatch):
    class Graph(compare._CanonicalGraph):
        def __init__(self, recording, of):
            built.append(id(recording))
            super().__init__(recording, of)

    built, model, step = [], nn.Linear(4, 3), supervised(nn.CrossEntropyLoss())
    others = [record(model, batch(rows), step) for rows in (2, 3)]
    # a value that nothing needs numbers those after it differently
    again = record(model, batch(3), lambda *args: (args[0](args[1][0] * 2), step(*args))[1])
    monkeypatch.setattr(compare, "_CanonicalGraph", Graph)
    for _ in range(2):
        found = [compare.difference(one, [one.loss], again, [again.loss]) for one in others]
        assert found[1] is None
    assert len(built) == 3
