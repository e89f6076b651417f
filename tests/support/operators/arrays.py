"""Views, joined arrays, products, reductions, look-ups and padding."""

from collections.abc import Sequence

import numpy as np
from support.operators.cases import (
    AS_TEXT,
    LABELS,
    Case,
    X,
    case,
    normal,
    not_compiled,
)
from support.operators.elementwise import TIES

from csrun.cirh.ops import (
    concatenation,
    grouped_products,
    indexing,
    padding,
    products,
    reductions,
    shape,
    sorting,
)
from csrun.cirh.ops.loss import IGNORE_INDEX

FORWARD: Sequence[Case] = (
    case(shape.ViewOp, lambda torch, x: x.reshape(2, 6), X, shape=(2, 6)),
    case(shape.ExpandOp, lambda torch, x: x.expand(2, 4, 3), normal(4, 1), shape=(2, 4, 3)),
    case(shape.PermuteOp, lambda torch, x: x.permute(2, 0, 1), normal(2, 3, 4), dims=(2, 0, 1)),
    case(shape.TransposeOp, lambda torch, x: x.t(), X),
    case(
        shape.SliceOp, lambda torch, x: x[:, 1:4:2], normal(3, 5, 2), dim=1, start=1, end=4, step=2
    ),
    case(shape.SliceOp, lambda torch, x: x[2:2], X, dim=0, start=2, end=2, step=1),
    case(shape.SelectOp, lambda torch, x: x[:, :, 3], normal(2, 3, 4), dim=2, index=3),
    case(shape.CloneOp, lambda torch, x: x.clone(), X),
    case(
        shape.SliceBackwardOp,
        lambda torch, g: torch.ops.aten.slice_backward(g, [3, 5], 1, 1, 5, 3),
        normal(3, 2),
        input_sizes=(3, 5),
        dim=1,
        start=1,
        end=5,
        step=3,
    ),
    case(
        shape.SelectBackwardOp,
        lambda torch, g: torch.ops.aten.select_backward(g, [3, 5], 0, 2),
        normal(5),
        input_sizes=(3, 5),
        dim=0,
        index=2,
    ),
    case(
        concatenation.CatOp,
        lambda torch, *x: torch.cat(x, 1),
        normal(2, 3),
        normal(2, 1),
        normal(2, 0),
        dim=1,
    ),
    case(padding.ShareOp, lambda torch, x: x / 3, X, parts=3),
    case(products.MmOp, lambda torch, a, b: a @ b, X, normal(3, 5)),
    case(products.MatmulOp, lambda torch, a, b: a @ b, normal(2, 4, 3), normal(2, 3, 5)),
    case(products.MatmulOp, lambda torch, a, b: a @ b, normal(6, 1, 4, 3), normal(2, 3, 1)),
    case(products.MatmulOp, lambda torch, a, b: a @ b, normal(4, 3), normal(2, 3, 5)),
    case(products.AddmmOp, lambda torch, c, a, b: torch.addmm(c, a, b), normal(5), X, normal(3, 5)),
    case(reductions.AmaxOp, lambda torch, x: x.amax(1), TIES, dims=(1,), keepdim=False),
    case(
        reductions.AmaxOp,
        lambda torch, x: x.amax((0, 2), True),
        np.round(normal(2, 3, 4)),
        dims=(0, 2),
        keepdim=True,
    ),
    case(reductions.AminOp, lambda torch, x: x.amin(0), TIES, dims=(0,), keepdim=False),
    case(
        indexing.GatherOp,
        lambda torch, x, i: x.gather(1, i),
        normal(4, 5),
        np.array([[4, 0, 4], [1, 1, 1]]),
        dim=1,
    ),
    case(
        indexing.GatherOp,
        lambda torch, x, i: x.gather(0, i),
        normal(3, 2, 2),
        np.array([[[2, 0]], [[1, 1]], [[2, 2]], [[0, 1]]]),
        dim=0,
    ),
    case(
        indexing.IndexSelectOp,
        lambda torch, x, i: x.index_select(1, i),
        normal(2, 4, 3),
        np.array([3, 0, 3, 3, 1]),
        dim=1,
    ),
    case(
        indexing.IndexSelectBackwardOp,
        lambda torch, g, i: torch.zeros(2, 4, 3, dtype=g.dtype).index_add(1, i, g),
        normal(2, 5, 3),
        np.array([3, 0, 3, 3, 1]),
        input_sizes=(2, 4, 3),
        dim=1,
    ),
    case(reductions.SumOp, lambda torch, x: x.sum(0), X, dims=(0,), keepdim=False),
    case(
        reductions.SumOp,
        lambda torch, x: x.sum((0, 2), True),
        normal(2, 3, 4),
        dims=(0, 2),
        keepdim=True,
    ),
    *not_compiled(
        AS_TEXT,
        case(
            padding.MaskPaddingOp,
            lambda torch, x, n: torch.where((torch.arange(6) < 2 * n)[:, None], x, 0.5),
            normal(6, 3),
            np.array(2),
            dim=0,
            rows=2,
            value=0.5,
        ),
    ),
    *not_compiled(
        AS_TEXT,
        case(
            padding.MaskPaddingOp,
            lambda torch, x, n: torch.where(torch.arange(6)[:, None] < n, x, -1.0),
            normal(2, 6, 3),
            np.array(5),
            dim=1,
            rows=1,
            value=-1.0,
        ),
    ),
)
WITHOUT_GRADIENT: Sequence[Case] = (
    case(padding.FirstPartOp, lambda torch, x, first: x, X, np.zeros(())),
    case(padding.FirstPartOp, lambda torch, x, first: 0 * x, X, np.full((), 3.0)),
    case(
        padding.LabelCountOp,
        lambda torch, labels: torch.ops.aten.nll_loss_forward(
            torch.zeros((4, 3), dtype=torch.float64), labels, None, 2, IGNORE_INDEX
        )[1],
        LABELS,
        ignore_index=IGNORE_INDEX,
        dtype="float64",
    ),
    case(
        indexing.GatherBackwardOp,
        lambda torch, g, i: torch.zeros(4, 5, dtype=g.dtype).scatter_add(1, i, g),
        normal(2, 3),
        np.array([[4, 0, 4], [1, 1, 1]]),
        input_sizes=(4, 5),
        dim=1,
    ),
    case(reductions.ArgmaxOp, lambda torch, x: x.argmax(1), X, dim=1),
    case(
        sorting.ArgsortOp,
        lambda torch, x: x.argsort(stable=True, dim=1),
        TIES,
        dim=1,
        descending=False,
    ),
    case(
        sorting.ArgsortOp,
        lambda torch, x: x.argsort(stable=True, dim=0, descending=True),
        np.array([[3, 1], [0, 1], [3, 4]]),
        dim=0,
        descending=True,
    ),
    case(
        grouped_products.GroupedMmOp,
        lambda torch, x, w, ends: torch.cat([x[:2] @ w[0], x[2:5] @ w[2], 0 * (x[5:] @ w[0])]),
        normal(6, 3),
        normal(3, 3, 4),
        np.array([2, 2, 5]),
    ),
    case(
        grouped_products.GroupedOuterOp,
        lambda torch, a, b, ends: torch.stack([a[:, :2] @ b[:2], 0 * (a @ b), a[:, 2:5] @ b[2:5]]),
        normal(3, 6),
        normal(6, 4),
        np.array([2, 2, 5]),
    ),
    case(
        products.AddProductOp,
        lambda torch, before, a, b: torch.addmm(before, a, b),
        normal(2, 3),
        normal(2, 4),
        normal(4, 3),
    ),
)
