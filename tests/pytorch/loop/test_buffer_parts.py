"""Writes of forward into slices of integer and boolean buffers, against plain PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import beside  # noqa: E402
from torch import nn  # noqa: E402


class Ring(nn.Linear):
    """Ring buffer of the last three batches, with its write index."""

    def __init__(self):
        super().__init__(6, 4)
        self.register_buffer("queue", torch.zeros(24, 6))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("is_filled", torch.zeros(3, dtype=torch.bool))

    def forward(self, x):
        out, place = super().forward(x + self.queue.mean(0)), int(self.place)
        with torch.no_grad():
            self.queue[place : place + 8] = x
            self.is_filled[place // 8] = True
            self.place[0] = (place + 8) % 24
        return out * (1 + self.place) / self.is_filled.sum()


class Counts(nn.Linear):
    """Counters written through views, which forward also reads through other views."""

    def __init__(self):
        super().__init__(6, 4)
        self.register_buffer("counts", torch.zeros(2, 3, dtype=torch.int32))

    def forward(self, x):
        row, before = self.counts[1], self.counts.clone()
        row[0] += 2
        row[1:].add_(self.counts[0, 0] + 1)
        self.counts[0].fill_(int(row[0]) % 4)
        self.counts.view(6)[5] = x.shape[0]
        self.counts.add_(1)
        return super().forward(x) * (1 + row.sum() + before[1, 0] + self.counts[0, 1]) / 9


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("layer", [Ring, Counts])
def test_parts_of_counters_are_written(tmp_path, layer, fast):
    def loop(kit):
        losses = kit.train_once()
        counted = [buffer.double().sum() for buffer in kit.model.buffers()]
        return [*losses, *counted, *kit.train_once()]

    beside(loop, tmp_path, layer(), settings={"fast": fast})
