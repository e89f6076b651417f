"""Convolution, pooling, resizing of images, running sums."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.programs import Machine, options_of  # noqa: E402
from support.recorded import Beside  # noqa: E402
from support.torch_rows import check_exact, check_near, row  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.base.mode import ExecutionMode, RunMode  # noqa: E402
from csrun.compiler import compile_model  # noqa: E402
from csrun.pytorch.lower.to_cirh import module_of, output_name  # noqa: E402
from csrun.pytorch.record.recorder import StepRecorder  # noqa: E402
from csrun.records.torch_names import stored_name  # noqa: E402


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.more = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.AvgPool2d(2))
        self.pool, self.classes = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x):
        return self.classes(self.pool(self.more(self.features(x))).flatten(1))


def drawn(**options):
    return lambda x: f.interpolate(x, **options)


def images(function, **options):
    """Function of a convolution's images [4, 4, 5, 6], followed by a transposed convolution."""
    modules = nn.Conv2d(2, 4, 3, padding=1), nn.ConvTranspose2d(4, 6, 3, **options)
    return row(lambda x, conv, back: back(function(conv(x)).tanh()), 2, 5, 6, modules=modules)


def lines(function):
    """The same over one spatial axis."""
    modules = nn.Conv1d(2, 4, 3), nn.ConvTranspose1d(4, 3, 4, stride=3)
    return row(lambda x, conv, back: back(function(conv(x)).tanh()), 2, 30, modules=modules)


EXACT = {
    "nearest": images(drawn(scale_factor=2), stride=2),
    "nearest of sizes": images(drawn(size=(3, 13)), stride=2, output_padding=1),
    "nearest by an odd scale": images(drawn(scale_factor=(1.7, 0.6))),
    "bilinear": images(drawn(scale_factor=2, mode="bilinear"), stride=(2, 1), padding=1, groups=2),
    "bilinear of sizes": images(drawn(size=(4, 11), mode="bilinear"), bias=False),
    "bilinear by an odd scale": images(drawn(scale_factor=1.4, mode="bilinear")),
    "bilinear, aligned": images(
        drawn(size=(9, 1), mode="bilinear", align_corners=True), dilation=2
    ),
    "lines": lines(drawn(scale_factor=2)),
    "lines between": lines(drawn(size=31, mode="linear")),
    "turned": images(lambda x: x.flip(-1, 1) + x.flip(2)),
    "summed": images(lambda x: x.cumsum(1) + x.cumsum(-1)),
}


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


NEAR = {
    "conv1d": row(lambda x, c: c(x), 4, 6, modules=[nn.Conv1d(4, 3, 3, padding=1)]),
    "conv1d_same": row(lambda x, c: c(x), 4, 6, modules=[nn.Conv1d(4, 3, 3, padding="same")]),
    "conv2d_depthwise": row(lambda x, c: c(x), 4, 6, 6, modules=[nn.Conv2d(4, 4, 3, groups=4)]),
    "max_pool_1d": row(lambda x: f.max_pool1d(x, 2), 4, 6),
    "avg_pool_1d": row(lambda x: f.avg_pool1d(x, 2), 4, 6),
    "max_pool_ceil": row(lambda x: f.max_pool2d(x, 2, ceil_mode=True), 2, 5, 6),
    "max_pool_ceil_padded": row(lambda x: f.max_pool2d(x, 3, 2, 1, ceil_mode=True), 2, 6, 4),
    "max_pool_ceil_dilated": row(
        lambda x: f.max_pool2d(x, 2, (2, 3), dilation=2, ceil_mode=True), 2, 6, 7
    ),
    "avg_pool_ceil": row(lambda x: f.avg_pool2d(x, 3, 2, 1, ceil_mode=True), 2, 6, 7),
    "avg_pool_ceil_pixels": row(
        lambda x: f.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, count_include_pad=False), 2, 6, 7
    ),
    "avg_pool_divisor": row(lambda x: f.avg_pool2d(x, 2, divisor_override=3), 2, 4, 6),
    "bilinear_antialiased": row(
        lambda x: f.interpolate(x, (3, 9), mode="bilinear", antialias=True), 2, 7, 6
    ),
    "bicubic_antialiased": row(
        lambda x: f.interpolate(
            x, scale_factor=(0.4, 1.3), mode="bicubic", antialias=True, align_corners=True
        ),
        2,
        7,
        6,
    ),
    "max_pool_indices": row(
        lambda x: x.flatten(2).gather(
            2, f.max_pool2d(x, (3, 2), (2, 1), 1, return_indices=True)[1].flatten(2)[:, :, :9]
        ),
        2,
        5,
        6,
    ),
    "max_pool_indices_ceil": row(
        lambda x: x * f.max_pool2d(x, 2, ceil_mode=True, return_indices=True)[1].sum(), 2, 5, 7
    ),
    "max_pool_indices_1d": row(
        lambda x: (
            (x / 8 + f.max_pool1d(x, 2, return_indices=True)[1].repeat(1, 1, 2) / 8).sum(2)
            + x[:, 0, f.max_pool1d(x[0], 2, return_indices=True)[1][0]].sum()
        ),
        2,
        8,
    ),
    "max_unpool": row(
        lambda x: f.max_unpool2d(*f.max_pool2d(x, 2, return_indices=True), 2), 2, 4, 6
    ),
    "adaptive": row(lambda x: f.adaptive_avg_pool2d(x, 2), 2, 4, 6),
    "adaptive_one": row(lambda x: f.adaptive_avg_pool1d(x, 1), 4, 6),
}


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)


@pytest.mark.parametrize("mode", ExecutionMode)
def test_images_are_pytorchs_and_batch_norm_has_state(tmp_path, mode):
    torch.manual_seed(0)
    model = Images().double()
    batch = torch.randn(6, 2, 12, 12).double(), torch.tensor([0, 1, 2, 1, 0, 2])

    def step(model, batch):
        model.zero_grad()
        loss = f.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    pair = Beside(model, batch, step, tmp_path, mode)
    assert pair.recording.counters == {"features.1.num_batches_tracked": 1}
    machine = pair.machine()
    pair.check(1e-12, 1e-11)
    pair.ours(machine)
    for name in ("running_mean", "running_var"):
        ours = torch.from_numpy(machine.state[f"features/1/{name}"])
        torch.testing.assert_close(ours, getattr(model.features[1], name), rtol=1e-12, atol=1e-14)


def test_evaluation_gives_outputs(tmp_path):
    torch.manual_seed(0)
    model = Images().double().eval()
    model.features[1].running_mean.uniform_(-1, 1)
    images = torch.randn(6, 2, 12, 12).double()
    recorder = StepRecorder(model)
    with recorder, torch.no_grad():
        logits = model(recorder.batch(images))
    recording = recorder.finish()
    module = module_of(recording, {}, RunMode.PREDICT, [logits.value])
    options = options_of(run_mode=RunMode.PREDICT)
    executable = compile_model(module, tmp_path, options).executable
    named = (*model.named_parameters(), *model.named_buffers())
    names = {p.name for p in executable.plan.parameters}
    values = {stored_name(n): p.detach().numpy() for n, p in named if stored_name(n) in names}
    machine = Machine(executable, values)
    machine.predict([images.numpy()])
    found = torch.from_numpy(machine.output(output_name(logits.value)))
    torch.testing.assert_close(found, model(images).detach(), rtol=1e-12, atol=1e-13)
