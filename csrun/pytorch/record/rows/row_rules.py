"""Rules of operators on rows that a mask of the batch has selected.

A rule says which axis of the results has the rows, and which operands' padding is left out of a sum
over rows. An operator without a rule may mix rows.
"""

from collections.abc import Mapping

import torch

from csrun.pytorch.record.rows.by_row import (
    along,
    cut,
    cut_backward,
    divided,
    elementwise,
    expanded,
    extreme,
    gathered,
    permuted,
    squeezed,
    transposed,
    unsqueezed,
    viewed,
    zeros,
)
from csrun.pytorch.record.rows.operands import NotByRow, RowOperands, Rule, RuleResult
from csrun.pytorch.record.rows.sums import (
    added_at,
    embedded,
    embedded_backward,
    loss,
    loss_backward,
    loss_by_label,
    normalized,
    normalized_backward,
    product,
    reduced,
    selected,
)

_ELEMENTWISE = (
    *("_to_copy.default", "clone.default", "detach.default", "alias.default", "where.self"),
    *("ones_like.default", "zeros_like.default", "empty_like.default", "full_like.default"),
    *("masked_fill.Scalar", "masked_fill.Tensor", "threshold_backward.default"),
)
RULES: Mapping[str, Rule] = {
    **{f"aten.{name}": elementwise for name in _ELEMENTWISE},
    "aten.div.Tensor": divided,
    "aten.div.Scalar": divided,
    "aten.view.default": viewed,
    "aten._unsafe_view.default": viewed,
    "aten.reshape.default": viewed,
    "aten.expand.default": expanded,
    "aten.unsqueeze.default": unsqueezed,
    "aten.squeeze.dim": squeezed,
    "aten.squeeze.dims": squeezed,
    "aten.t.default": transposed,
    "aten.transpose.int": transposed,
    "aten.permute.default": permuted,
    "aten.select.int": cut,
    "aten.slice.Tensor": cut,
    "aten.argmax.default": extreme,
    "aten.argmin.default": extreme,
    "aten.max.dim": extreme,
    "aten.min.dim": extreme,
    "aten.cumsum.default": cut,
    "aten.select_backward.default": cut_backward,
    "aten.slice_backward.default": cut_backward,
    "aten._softmax.default": along,
    "aten._log_softmax.default": along,
    "aten._softmax_backward_data.default": along,
    "aten._log_softmax_backward_data.default": along,
    "aten.gather.default": gathered,
    "aten.scatter_add.default": gathered,
    "aten.sum.default": reduced,
    "aten.sum.dim_IntList": reduced,
    "aten.mean.default": reduced,
    "aten.mean.dim": reduced,
    "aten.mse_loss.default": loss(2, 0, 0),
    "aten.mse_loss_backward.default": loss_backward(3),
    "aten.smooth_l1_loss.default": loss(2, 0, 0),
    "aten.smooth_l1_loss_backward.default": loss_backward(3),
    "aten.huber_loss.default": loss(2, 0, 0),
    "aten.huber_loss_backward.default": loss_backward(3),
    # 1e4: the largest power of 10 whose exponential is infinite and which a float16 has
    "aten.binary_cross_entropy_with_logits.default": loss(4, 1e4, 1),
    "aten.binary_cross_entropy.default": loss(3, 1, 1),
    "aten.binary_cross_entropy_backward.default": loss_backward(4),
    "aten.nll_loss_forward.default": loss_by_label,
    "aten.nll_loss_backward.default": loss_by_label,
    "csrun::cross_entropy": loss_by_label,
    "csrun::cross_entropy_backward": loss_by_label,
    "aten.mm.default": product,
    "aten.addmm.default": product,
    "aten.index.Tensor": selected,
    "aten.index_put.default": added_at,
    "aten._unsafe_index_put.default": added_at,
    "aten.embedding.default": embedded,
    "aten.embedding_dense_backward.default": embedded_backward,
    "aten.native_layer_norm.default": normalized,
    "aten.native_layer_norm_backward.default": normalized_backward,
    "aten.new_zeros.default": zeros,
}


def apply_rule(x: RowOperands) -> RuleResult:
    """Return the axis of rows of an operator's results. Raises: NotByRow"""
    rule = RULES.get(x.op.name)
    if rule is None and torch.Tag.pointwise in getattr(x.op.call, "tags", ()):
        rule = elementwise
    if rule is None:
        raise NotByRow(f"{x.op.line}: {x.op.name}")
    try:
        return rule(x)
    except (IndexError, KeyError, ValueError) as error:  # arguments that the rule does not expect
        raise NotByRow(f"{x.op.line}: {x.op.name}") from error
