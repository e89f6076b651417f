"""Recurrent networks and cells, recorded as composite operators."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_rows import check_exact, check_near, row  # noqa: E402
from torch import nn  # noqa: E402


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.out = kind(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        hidden = (x.new_zeros(len(x), 4),) * 2
        for place in range(x.shape[1]):
            hidden = self.cell(x[:, place], hidden)
        return self.out(hidden[0])


EXACT = {
    "lstm_cell": row(lambda x, m: m(x), 3, 6, modules=[Recurrent(nn.LSTMCell)]),
}


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


NEAR = {
    "gru_cell": row(lambda x, c: c(x), 5, modules=[nn.GRUCell(5, 4)]),
    "rnn_cell": row(lambda x, c: c(x), 5, modules=[nn.RNNCell(5, 4)]),
    "gru": row(lambda x, r: r(x)[0], 3, 5, modules=[nn.GRU(5, 4, batch_first=True)]),
    "gru_both_ways": row(
        lambda x, r: r(x)[0], 3, 5, modules=[nn.GRU(5, 4, 2, bidirectional=True, batch_first=True)]
    ),
    "rnn": row(lambda x, r: r(x)[0], 3, 5, modules=[nn.RNN(5, 4, batch_first=True)]),
    "rnn_relu": row(
        lambda x, r: r(x)[0], 3, 5, modules=[nn.RNN(5, 4, nonlinearity="relu", batch_first=True)]
    ),
    "lstm": row(lambda x, r: r(x)[0], 3, 5, modules=[nn.LSTM(5, 4, batch_first=True)]),
}


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)
