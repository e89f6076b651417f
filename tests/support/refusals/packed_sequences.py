"""Packed sequences, which are recorded with their padding."""

import torch
from support.refusals import refused_model
from support.torch_loops import Kit
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Sequences(Kit):
    """A kit with batches of 8 sequences of 5 rows, which have other lengths."""

    def __init__(self, model):
        super().__init__(model)
        self.model = self.model[0]
        x, lengths = torch.randn(48, 5, 3).double(), torch.arange(48) % 5 + 1
        self.train = DataLoader(TensorDataset(x, lengths, torch.randint(4, (48,))), 8)

    def train_once(self):
        for x, lengths, y in self.train:
            self.update(self.criterion(self.model(x, lengths), y))  # here


class Packs(nn.Module):
    """A recurrent network, of which a case changes a part."""

    def __init__(self, **options):
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True, **options)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.recurrent(packed))

    def recurrent(self, packed):
        return self.layer(packed)[0]  # here

    def head(self, packed):
        return pad_packed_sequence(packed, batch_first=True)[0].mean(1)


def refused_sequences(row):
    return refused_model(row, kit=Sequences)


@refused_sequences("a packed sequence that forward returns")
class ReturnsPacked(Packs):
    def head(self, packed):
        return packed


@refused_sequences("reads of a packed sequence's `batch_sizes`")
class ReadsSizes(Packs):
    def head(self, packed):
        return super().head(packed) * packed.batch_sizes.sum()  # here


GRAPH = "hooks, `retain_grad`, `requires_grad_` and `detach_` of a packed sequence's `data`"


@refused_sequences(GRAPH)
class HooksRows(Packs):
    def head(self, packed):
        packed.data.register_hook(lambda gradient: gradient * 2)  # here
        return super().head(packed)


@refused_sequences(GRAPH)
class RetainsGradients(Packs):
    def head(self, packed):
        packed.data.retain_grad()  # here
        return super().head(packed)


@refused_sequences(GRAPH)
class RequiresGradients(Packs):
    def head(self, packed):
        packed.data.requires_grad_()  # here
        return super().head(packed)


@refused_sequences(GRAPH)
class DetachesRows(Packs):
    def head(self, packed):
        packed.data.detach_()  # here
        return super().head(packed)


RECOMPUTED = "`torch.utils.checkpoint` around functions of a packed sequence"


@refused_sequences(RECOMPUTED)
class RecomputesRows(Packs):
    def head(self, packed):
        rows = checkpoint(lambda x: x.tanh().sin(), packed.data, use_reentrant=False)  # here
        return super().head(PackedSequence(rows, *packed[1:]))


@refused_sequences(RECOMPUTED)
class RecomputesLayer(Packs):
    def recurrent(self, packed):
        return checkpoint(super().recurrent, packed, use_reentrant=False)  # here


@refused_sequences("`proj_size` of an LSTM that gets a packed sequence")
class Projects(Packs):
    def __init__(self):
        super().__init__(proj_size=2)

    def recurrent(self, packed):
        return self.layer(packed)[0]  # here
