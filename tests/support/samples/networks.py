"""The oracle's table: products, reductions, normalizations, tables, attention, losses."""

from support.samples.row import Row, given, only, skip

from csrun.cirh.ops.loss import IGNORE_INDEX


def matmul(nn, x, y):
    return nn.matmul(x, y)


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


def _epsilon(x, eps):
    """PyTorch's own where there is none: that of the element type."""
    return {"float32": 2.0**-23, "float64": 2.0**-52}[x.dtype] if eps is None else eps


def embedding(nn, weight, indices, **options):
    """The layer."""
    padding = _padding(weight, **options)
    with given(weight, weight):
        return nn.Embedding(*weight.shape, padding_idx=padding)(indices)


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
    Row("bmm", matmul),
    Row("mm", matmul),
    Row("mv", matmul),
    Row("dot", matmul),
    Row("nn.functional.linear", dense),
    Row("nn.functional.linear", biased),
    Row("add", positioned),
    Row("sum", total, dtypes=("bool", "int32", "int64")),
    Row("mean", mean),
    Row("argmax", argmax, dtypes=("int64",), has_gradient=False),
    Row("softmax", lambda nn, x, dim, dtype=None: nn.softmax(x, dim)),
    Row("log_softmax", lambda nn, x, dim, dtype=None: nn.log_softmax(x, dim)),
    Row("nn.functional.layer_norm", layer_norm),
    Row("nn.functional.rms_norm", rms_norm),
    Row("nn.functional.embedding", embedding),
    Row("nn.functional.scaled_dot_product_attention", attention),
    Row("nn.functional.cross_entropy", cross_entropy),
)
