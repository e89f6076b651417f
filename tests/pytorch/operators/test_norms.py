"""Layer, RMS, group, instance, weight and batch norms."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from support.torch_rows import check_exact, check_near, row, with_table  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


def norms(x, w):
    y = f.layer_norm(x, (6,), w[0], w[1]) + f.layer_norm(x, (3, 6), w) + f.layer_norm(x, (6,))
    return y + f.rms_norm(x, (6,), w[2])


def frozen():
    norm = nn.BatchNorm2d(3).eval()
    norm.running_var.copy_(torch.tensor([0.5, 1.0, 2.0]))
    return norm


class Groups(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8)
        self.pool, self.classes = nn.MaxPool1d(2), nn.Linear(8, 3)

    def forward(self, x):
        return self.classes(self.pool(f.silu(self.norm(self.conv(x)))).amax(2))


EXACT = {
    **with_table(norms),
    "frozen batch norm": row(lambda x, norm: norm(x), 3, 4, 4, modules=(frozen(),)),
    "groups": row(lambda x, model: model(x), 3, 12, modules=(Groups(),)),
}


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


NEAR = {
    "instance_norm": row(
        lambda x, norm: norm(x), 4, 6, modules=[nn.InstanceNorm1d(4, affine=True)]
    ),
    "instance_norm_2d": row(lambda x, norm: norm(x) * x, 3, 4, 5, modules=[nn.InstanceNorm2d(3)]),
    "group_norm": row(lambda x, norm: norm(x), 4, 6, modules=[nn.GroupNorm(2, 4)]),
    "batch_norm_1d": row(lambda x, norm: norm(x), 4, 6, modules=[nn.BatchNorm1d(4)]),
    "batch_norm_rows": row(lambda x, norm: norm(x), 6, modules=[nn.BatchNorm1d(6)]),
    "batch_norm_of_last": row(
        lambda x, r, norm: norm(r(x)[0][:, -1]),
        3,
        5,
        modules=[nn.GRU(5, 4, batch_first=True), nn.BatchNorm1d(4)],
    ),
    "batch_norm_of_some": row(lambda x, norm: norm(x[:3]), 5, modules=[nn.BatchNorm1d(5)]),
    "layer_norm": row(lambda x, norm: norm(x), 4, 6, modules=[nn.LayerNorm([4, 6])]),
    "weight_norm": row(
        lambda x, w: w(x), 5, modules=[nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))]
    ),
}


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)


def test_running_statistics_of_an_instance_norm_are_pytorchs(tmp_path):
    """In training, and in a pass that uses them in evaluation mode."""

    def loop(kit):
        losses = kit.train_once()
        kit.model.eval()
        with torch.no_grad():
            return losses + [kit.criterion(kit.model(x), y).item() for x, y in kit.val]

    norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    beside(loop, tmp_path, nn.Unflatten(1, (2, 3)), norm, nn.Flatten(), nn.Linear(6, 4))


@pytest.mark.parametrize("tracks", [True, False])
def test_an_instance_norm_of_one_spatial_element_is_refused_as_in_pytorch(tmp_path, tracks):
    norm = nn.InstanceNorm1d(6, track_running_stats=tracks)
    kits = [Kit(nn.Unflatten(1, (6, 1)), norm, nn.Flatten(), nn.Linear(6, 4)) for _ in range(2)]
    with pytest.raises(ValueError, match="more than 1 spatial element") as theirs:
        kits[0].train_once()
    with pytest.raises(UsageError) as ours, kits[1].session(tmp_path):
        kits[1].train_once()
    assert f"layer 1: PyTorch raises ValueError: {theirs.value}" in str(ours.value)
