"""Packed sequences: recurrent layers on padded rows with lengths from the batch."""

import json

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402

LONGEST = 5


class Lengths(Kit):
    """Batches of 8 sequences; in the first ones the longest is shorter than the padding."""

    def __init__(self, model):
        super().__init__(model)
        self.model = self.model[0]
        lengths = torch.randint(1, LONGEST + 1, (64,))
        lengths[::8] = LONGEST
        lengths[:16].clamp_(max=LONGEST - 1)
        x = torch.randn(64, LONGEST, 3, dtype=torch.float64)
        samples = TensorDataset(x, lengths, torch.randint(4, (64,)))
        self.train = DataLoader(samples, 8)


class Network(nn.Module):
    """Recurrent layer, mean over time, and the last states."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.batch_first = layer, layer.batch_first
        self.last = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 4)

    def forward(self, x, lengths):
        x = x if self.batch_first else x.transpose(0, 1)
        packed = pack_padded_sequence(x, lengths, self.batch_first, enforce_sorted=False)
        out, state = self.layer(packed)
        states = state if isinstance(state, tuple) else (state,)
        return self.head(out) + sum(each.mean(0).mean(1, keepdim=True) for each in states)

    def head(self, packed):
        out, lengths = pad_packed_sequence(packed, self.batch_first, padding_value=-0.5)
        axis = 1 if self.batch_first else 0
        return self.last(out.mean(axis) + out.sum(axis) / lengths[:, None])


class OfRows(Network):
    """Network that computes on packed rows, and packs them again."""

    def head(self, packed):
        rows = PackedSequence(self.last(packed.data), *packed[1:])
        out, _ = pad_packed_sequence(rows, self.batch_first, total_length=LONGEST + 1)
        return out.sum(1) + packed.data.std()


def one_pass(kit):
    losses = []
    for x, lengths, y in kit.train:
        loss = kit.criterion(kit.model(x, lengths), y)
        losses.append(kit.update(loss))
    return losses


LAYERS = {
    "lstm": lambda: nn.LSTM(3, 2, batch_first=True, bidirectional=True),
    "gru": lambda: nn.GRU(3, 2, num_layers=2),
    "rnn": lambda: nn.RNN(3, 2, nonlinearity="relu", bias=False, batch_first=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_is_pytorchs(tmp_path, name):
    beside(one_pass, tmp_path, Network(LAYERS[name]()), kit=Lengths)
    performance = json.loads(next(tmp_path.rglob("performance.json")).read_text())
    assert not performance["recorded_steps"], "one program serves other lengths"


def test_each_step_may_be_recorded(tmp_path):
    model = Network(LAYERS["rnn"]())
    beside(one_pass, tmp_path, model, kit=Lengths, settings={"fast": False})


def test_other_functions_get_the_valid_rows(tmp_path):
    beside(one_pass, tmp_path, OfRows(LAYERS["rnn"]()), kit=Lengths)


class Edited(Network):
    """Network that edits the packed input or output by `edit`, which may return other rows."""

    def __init__(self, layer, edit):
        super().__init__(layer)
        self.edit = edit

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = self.layer(self._edited(packed))
        return self.head(self._edited(out)) + state.mean(0).mean(1, keepdim=True)

    def _edited(self, packed):
        rows = self.edit(packed.data)
        return packed if rows is None else PackedSequence(rows, *packed[1:])


class Negated(torch.autograd.Function):
    """Negation whose gradient is negated twice."""

    @staticmethod
    def forward(ctx, x):
        """Return the opposite."""
        ctx.save_for_backward(x)
        return -x - x.mean()

    @staticmethod
    def backward(ctx, grad):
        """Return another gradient than the function's."""
        (x,) = ctx.saved_tensors
        return grad * x.cos()


class Returned(Negated):
    """Identity that returns its argument, as gradient reversals do."""

    @staticmethod
    def forward(ctx, x):
        """Return the argument."""
        ctx.save_for_backward(x)
        return x


negated = Negated.apply  # as scripts bind it, before a Session


def write(rows):
    rows.mul_(2.0)
    rows[0] = 0.0
    rows.data[1] = 0.25
    functional.relu(rows, inplace=True)


def write_view(rows):
    last = rows[:, 1:]
    last += rows.mean()


def write_out(rows):
    with torch.no_grad():
        torch.mul(rows, 0.5, out=rows.detach())


def read_without_gradient(rows):
    with torch.no_grad():
        mean = rows.mean()
    return rows * mean


def recomputed(rows):
    return checkpoint(lambda x: (x.tanh() * x.mean()).sin(), rows.clone(), use_reentrant=False)


@pytest.mark.parametrize(
    "edit",
    [
        *(write, write_view, write_out, read_without_gradient),
        *(recomputed, negated, Returned.apply),
    ],
    ids=lambda edit: edit.__qualname__,
)
def test_packed_rows_are_edited_as_in_pytorch(tmp_path, edit):
    beside(one_pass, tmp_path, Edited(LAYERS["rnn"](), edit), kit=Lengths)


class Padded(Lengths):
    """Batches with NaN and infinity in the padding."""

    def __init__(self, model):
        super().__init__(model)
        x, lengths, _ = self.train.dataset.tensors
        padding = torch.arange(LONGEST) >= lengths[:, None]
        x[padding] = float("nan")
        x[::2][padding[::2]] = float("inf")


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_padding_may_be_nan(tmp_path, name):
    beside(one_pass, tmp_path, Network(LAYERS[name]()), kit=Padded)


def hook(rows):
    rows.register_hook(lambda grad: grad * 2)


def retain(rows):
    rows.retain_grad()


def require(rows):
    rows.requires_grad_()


def assign(rows):
    rows.requires_grad = True


def detach(rows):
    rows.detach_()


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (hook, "register_hook"),
        (retain, "retain_grad"),
        (require, "requires_grad_"),
        (assign, "an assignment to requires_grad"),
        (detach, "detach_"),
    ],
)
def test_the_graph_of_packed_rows_is_not_changed(tmp_path, edit, name):
    kit = Lengths(Edited(LAYERS["rnn"](), edit))
    line = edit.__code__.co_firstlineno + 1
    message = f"{line}: .*{name} of a packed sequence's data is not supported: take x ="
    with pytest.raises(UsageError, match=message), kit.session(tmp_path):
        one_pass(kit)


def hook_of_a_clone(rows):
    x = rows.clone()
    if x.requires_grad:  # of the layer
        x.register_hook(lambda grad: grad * 2)
    return x


def test_what_the_refusal_says_works(tmp_path):
    beside(one_pass, tmp_path, Edited(LAYERS["rnn"](), hook_of_a_clone), kit=Lengths)


class ReadsSizes(Network):
    def head(self, packed):
        return super().head(packed) * packed.batch_sizes.sum()


class RecomputesRows(Network):
    def head(self, packed):
        rows = checkpoint(lambda x: x.tanh().sin(), packed.data, use_reentrant=False)
        return super().head(PackedSequence(rows, *packed[1:]))


class RecomputesLayer(Network):
    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(checkpoint(lambda p: self.layer(p)[0], packed, use_reentrant=False))


class RecomputesReentrantly(Network):
    def head(self, packed):
        rows = checkpoint(lambda x: packed.data * x.mean(), packed.data, use_reentrant=True)
        return super().head(PackedSequence(rows, *packed[1:]))


class Returns(Network):
    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[0]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (ReadsSizes, "batch_sizes of a packed sequence are read"),
        (RecomputesRows, "torch.utils.checkpoint recomputes functions of a packed sequence"),
        (RecomputesLayer, "torch.utils.checkpoint recomputes functions of a packed sequence"),
        (RecomputesReentrantly, "torch.utils.checkpoint recomputes functions of a packed seq"),
        (Returns, "forward returns a packed sequence"),
    ],
)
def test_what_a_recording_does_not_have_is_refused(tmp_path, model, message):
    kit = Lengths(model(LAYERS["rnn"]()))
    with pytest.raises(UsageError, match=message), kit.session(tmp_path):
        one_pass(kit)
