"""16-bit floats in forward, in the loop and in batches: a float32 run reads them as float32."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from csrun.base.errors import UsageError  # noqa: E402


class Halved(nn.Module):
    def __init__(self, kind=torch.float32):
        super().__init__()
        self.inner, self.kind = nn.Linear(6, 4), kind

    def forward(self, x):
        scale = torch.tensor(0.1, dtype=self.kind)
        logits = self.inner(x).to(self.kind) * scale
        return logits + torch.ones(4, dtype=self.kind)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_is_float_in_forward_the_loop_and_batches(tmp_path, caplog, kind):
    x, y = torch.randn(48, 6).to(kind), torch.randint(4, (48,))
    losses = {}
    for name, given, within in (("ours", x, kind), ("theirs", x.float(), torch.float32)):
        kit = Kit()
        kit.model = Halved(within)
        torch.manual_seed(2)
        nn.init.normal_(kit.model.inner.weight)
        nn.init.zeros_(kit.model.inner.bias)
        kit.optimizer = torch.optim.SGD(kit.model.parameters(), 0.1)
        kit.train = DataLoader(TensorDataset(given, y), 8)
        found = losses[name] = []

        def run(kit=kit, within=within, found=found):
            for batch, labels in kit.train:
                loss = kit.criterion(kit.model(batch), labels).to(within)
                assert loss.dtype is torch.float32
                found.append(kit.update(loss.half() if within is kind else loss))

        if name == "ours":
            with kit.session(tmp_path):
                run()
        else:
            run()
    ours, theirs = (torch.stack([x.float() for x in losses[n]]) for n in ("ours", "theirs"))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("cast", "name"),
    [
        (lambda model: model.half(), "parameter inner.bias is float16"),
        (lambda model: model.bfloat16(), "parameter inner.bias is bfloat16"),
        (lambda model: model.register_buffer("scale", torch.ones(1).half()), "buffer scale is fl"),
    ],
)
def test_a_model_of_16_bits_is_refused_with_the_remedy(tmp_path, cast, name):
    kit = Kit()
    kit.model = Halved()
    cast(kit.model)
    kit.optimizer = torch.optim.SGD(kit.model.parameters(), 0.1)
    kit.train = DataLoader(TensorDataset(torch.randn(16, 6), torch.randint(4, (16,))), 8)
    with pytest.raises(UsageError, match=r"py:\d+: ") as caught, kit.session(tmp_path):
        for batch, labels in kit.train:
            logits = kit.model(batch) * getattr(kit.model, "scale", 1.0)
            kit.update(kit.criterion(logits, labels))
    kind = "bfloat16" if "bfloat16" in name else "float16"
    assert name in str(caught.value)
    assert f'remove the cast; for 16-bit storage pass precision="mixed_{kind}" to' in str(
        caught.value
    )
