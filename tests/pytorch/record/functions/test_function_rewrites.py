"""Losses rewritten with other functions, and their recorded arguments."""

from torch.nn import functional

from csrun.pytorch.record.functions.function_rewrites import without_old_reduction


def test_a_loss_with_a_deprecated_option_is_left_to_pytorch():
    @without_old_reduction(functional.nll_loss)
    def record(recorder, input, target, weight=None, ignore_index=-100, reduction="mean"):
        return recorder, input, target, weight, ignore_index, reduction

    assert record("r", "x", "y", None, None, 3) == ("r", "x", "y", None, 3, "mean")
    assert record("r", "x", target="y", reduction="sum") == ("r", "x", "y", None, -100, "sum")
    assert record("r", "x", "y", None, True) is NotImplemented
    assert record("r", "x", "y", reduce=False) is NotImplemented
