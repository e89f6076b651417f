"""The oracle's table: products, reductions, normalizations, tables, attention, losses."""

from support.samples.row import Row, given, only, skip

from csrun.cirh.ops.embedding import EmbeddingOp
from csrun.cirh.ops.loss import IGNORE_INDEX, LogSoftmaxOp, NllLossForwardOp
from csrun.cirh.ops.normalization import FusedRmsNormOp, NativeLayerNormOp, SoftmaxOp
from csrun.cirh.ops.products import AddmmOp, MatmulOp, MmOp
from csrun.cirh.ops.reductions import SumOp


def matmul(nn, x, y):
    return nn.matmul(x, y)


def products(nn, x, y):
    return x.tracer.emit(MatmulOp, x, y)


def mm(nn, x, y):
    return x.tracer.emit(MmOp, x, y)


def addmm(nn, bias, x, y, beta=1, alpha=1):
    if bias.shape not in (y.shape[1:], (1, 1), (), (1,)):
        skip("what is added as a matrix")
    bias = nn.broadcast_to(nn.reshape(bias, bias.shape[-1:]), y.shape[1:])
    bias = bias if beta == 1 else bias * beta
    return x.tracer.emit(AddmmOp, bias, x if alpha == 1 else x * alpha, y)


def dense(nn, x, weight, bias=None):
    """Its kernel is the weight transposed."""
    if len(x.shape) < 2 or len(weight.shape) < 2:
        skip("shapes of a layer")
    weights = [nn.transpose(weight)] + ([] if bias is None else [bias])
    with given(x, *weights):
        return nn.Sequential([nn.Dense(weight.shape[0], use_bias=bias is not None)])(x)


def biased(nn, x, weight, bias=None):
    """A product, and a layer that adds a bias."""
    if bias is None or len(x.shape) < 2:
        skip("shapes of a layer")
    product = x @ nn.transpose(weight)
    with given(x, bias):
        return nn.Bias()(product)


def positioned(nn, x, table, alpha=1):
    """A layer that adds its table to each sample."""
    if len(x.shape) != 3 or getattr(table, "shape", None) != x.shape[1:]:
        skip("shapes of positions")
    with given(x, table):
        return nn.PositionEmbedding(x.shape[1])(x)


def total(nn, x, dim=None, keepdim=False, dtype=None):
    return nn.sum(x, _axes(x, dim), keepdim)


def whole_sum(nn, x, dim=None, keepdim=False, dtype=None):
    """The operator, which takes any axes, none included."""
    axes = tuple(a % len(x.shape) for a in _axes(x, dim)) if x.shape else ()
    return x.tracer.emit(SumOp, x, dims=axes, keepdim=keepdim)


def mean(nn, x, dim=None, keepdim=False, dtype=None):
    return nn.mean(x, _axes(x, dim), keepdim)


def _axes(x, dim):
    if dim is None or dim == [] or dim == ():
        return tuple(range(len(x.shape)))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def argmax(nn, x, dim=None, keepdim=False):
    if dim is None or keepdim:
        skip("dim and keepdim of argmax")
    return nn.argmax(x, dim)


def softmax(nn, x, dim, dtype=None):
    return x.tracer.emit(SoftmaxOp, x, dim=_axis(x, dim))


def log_softmax(nn, x, dim, dtype=None):
    return x.tracer.emit(LogSoftmaxOp, x, dim=_axis(x, dim))


def _axis(x, dim):
    return dim % len(x.shape) if x.shape else skip("softmax of a number")


def native_layer_norm(nn, x, shape, weight=None, bias=None, eps=1e-5):
    if weight is None or bias is None:
        skip("norm without weights")
    return [
        type(x)(x.tracer, value)
        for value in x.tracer.builder.emit_all(
            NativeLayerNormOp, x.value, weight.value, bias.value, eps=eps
        )
    ]


def layer_norm(nn, x, shape, weight=None, bias=None, eps=1e-5):
    if weight is None or bias is None or len(shape) > 1 or len(x.shape) < 2:
        skip("shapes of a norm")
    with given(x, weight, bias):
        return nn.LayerNorm(eps)(x)


def rms_norm(nn, x, shape, weight=None, eps=None):
    if weight is None or len(shape) > 1 or len(x.shape) < 2:
        skip("shapes of a norm")
    with given(x, weight):
        return nn.RMSNorm(_epsilon(x, eps))(x)


def fused_rms_norm(nn, x, shape, weight=None, eps=None):
    if weight is None:
        skip("norm without weights")
    return x.tracer.emit(FusedRmsNormOp, x, weight, eps=_epsilon(x, eps))


def _epsilon(x, eps):
    """PyTorch's own where there is none: that of the element type."""
    return {"float32": 2.0**-23, "float64": 2.0**-52}[x.dtype] if eps is None else eps


def embedding(nn, weight, indices, **options):
    """The layer."""
    padding = _padding(weight, **options)
    with given(weight, weight):
        return nn.Embedding(*weight.shape, padding_idx=padding)(indices)


def rows_of_a_table(nn, weight, indices, **options):
    """The operator."""
    padding = _padding(weight, **options)
    padding = -1 if padding is None else padding
    return weight.tracer.emit(EmbeddingOp, weight, indices, padding_idx=padding)


def _padding(weight, padding_idx=None, max_norm=None, norm_type=2.0, **options):
    only(max_norm=(max_norm, None))
    only(**{name: (found, False) for name, found in options.items()})
    return padding_idx if padding_idx is None else padding_idx % weight.shape[0]


def attention(
    nn, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    only(dropout_p=(dropout_p, 0.0), enable_gqa=(enable_gqa, False))
    if len(q.shape) != 4:
        skip("attention without heads")
    return nn.scaled_dot_product_attention(q, k, v, attn_mask, is_causal, scale)


def nll_loss(nn, x, labels, weight=None, ignore_index=IGNORE_INDEX, reduction="mean", **options):
    only(weight=(weight, None), reduction=(reduction, "sum"))
    if len(x.shape) != 2:
        skip("nll_loss of another rank")
    return x.tracer.emit(NllLossForwardOp, x, labels, ignore_index=ignore_index)


def cross_entropy(
    nn,
    x,
    labels,
    weight=None,
    ignore_index=IGNORE_INDEX,
    reduction="mean",
    label_smoothing=0.0,
):
    only(weight=(weight, None), reduction=(reduction, "mean"))
    if labels.shape != (x.shape[0], *x.shape[2:]) or labels.dtype != "int64":
        skip("labels as probabilities")
    if len(x.shape) < 2:
        skip("loss of one sample")
    last = nn.transpose(x, (0, *range(2, len(x.shape)), 1))
    return nn.softmax_cross_entropy(last, labels, ignore_index, label_smoothing)


ROWS = (
    Row("matmul", matmul),
    Row("__rmatmul__", lambda nn, x, y: y @ x),
    Row("bmm", products),
    Row("mm", mm),
    Row("mv", matmul),
    Row("dot", matmul),
    Row("addmm", addmm),
    Row("nn.functional.linear", dense),
    Row("nn.functional.linear", biased),
    Row("add", positioned),
    Row("sum", total, dtypes=("bool", "int32", "int64")),
    Row("sum", whole_sum, dtypes=("int64",)),
    Row("mean", mean),
    Row("argmax", argmax, dtypes=("int64",), has_gradient=False),
    Row("softmax", softmax),
    Row("softmax", lambda nn, x, dim, dtype=None: nn.softmax(x, dim)),
    Row("log_softmax", log_softmax),
    Row("log_softmax", lambda nn, x, dim, dtype=None: nn.log_softmax(x, dim)),
    Row("native_layer_norm", native_layer_norm),
    Row("nn.functional.layer_norm", layer_norm),
    Row("nn.functional.rms_norm", rms_norm),
    Row("nn.functional.rms_norm", fused_rms_norm),
    Row("nn.functional.embedding", embedding),
    Row("nn.functional.embedding", rows_of_a_table),
    Row("nn.functional.scaled_dot_product_attention", attention),
    Row("nn.functional.nll_loss", nll_loss),
    Row("nn.functional.cross_entropy", cross_entropy),
)
