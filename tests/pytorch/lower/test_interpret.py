"""Values of a recording computed by PyTorch on the host."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from csrun.pytorch.lower import interpret as interpreter  # noqa: E402
from csrun.pytorch.record.recorder import StepRecorder  # noqa: E402


def recorded(x, rate):
    """Recording of attention with a dropout rate, and its result."""
    recorder = StepRecorder(torch.nn.Identity())
    with recorder:
        traced = recorder.batch(x)
        out = scaled_dot_product_attention(traced, traced, traced, dropout_p=rate)
    return recorder.finish(), out.value


def test_attention_without_dropout_needs_no_masks(monkeypatch):
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1))
    recording, value = recorded(x, 0.0)
    monkeypatch.setattr(interpreter, "masks_of", lambda *given: pytest.fail("masks are lowered"))
    found = interpreter.interpret(recording, [value])[value]
    torch.testing.assert_close(found, scaled_dot_product_attention(x, x, x))


def test_attention_with_dropout_has_the_masks_of_the_program():
    x = torch.ones(2, 3, 5, 4)
    recording, value = recorded(x, 0.5)
    found = interpreter.interpret(recording, [value])[value]
    kept = (found * 5 / 2).round()  # of five equal weights, each doubled where it is kept
    assert 0 < kept.mean() < 5
    torch.testing.assert_close(found, kept * 2 / 5)
