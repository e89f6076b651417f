"""The oracle's table: views, parts, tensors put together, element types."""

from support.samples.row import Row, only, skip


def _sizes(shape):
    return shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape


def reshape(nn, x, *shape, **named):
    return nn.reshape(x, _sizes(shape) if shape else named["shape"])


def view(nn, x, *shape):
    sizes = _sizes(shape)
    return nn.reshape(x, sizes) if isinstance(sizes, list | tuple) else skip("view as a dtype")


def flatten(nn, x, start_dim=0, end_dim=-1):
    """csrun's keeps the batch."""
    only(start_dim=(start_dim, 1), end_dim=(end_dim, -1))
    return nn.flatten(x)


def broadcast_to(nn, x, shape):
    return nn.broadcast_to(x, shape)


def expand(nn, x, *shape):
    sizes, rank = _sizes(shape), len(x.shape)
    own = (*[1] * (len(sizes) - rank), *x.shape)
    return nn.broadcast_to(x, [o if s == -1 else s for s, o in zip(sizes, own, strict=True)])


def permute(nn, x, dims):
    return nn.transpose(x, dims)


def transpose(nn, x, dim0, dim1):
    axes = list(range(len(x.shape)))
    if axes:
        axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return nn.transpose(x, axes)


def reversed_axes(nn, x):
    return nn.transpose(x)


def narrow(nn, x, dim, start, length):
    start = start if isinstance(start, int) else skip("a start that is a tensor")
    key = [slice(None)] * len(x.shape)
    start += x.shape[dim] if start < 0 else 0
    key[dim] = slice(start, start + length)
    return x[tuple(key)]


def item(nn, x, key):
    return x[key]


def each(nn, x, dim=0):
    only(dim=(dim, 0))
    return list(x)


def cat(nn, tensors, dim=0):
    return nn.concatenate(tensors, dim)


def astype(dtype):
    def cast(nn, x, memory_format=None):
        return x.astype(dtype)

    return cast


ROWS = (
    Row("view", view, dtypes=("int64",)),
    Row("reshape", reshape, dtypes=("int64",)),
    Row("flatten", flatten),
    Row("broadcast_to", broadcast_to, dtypes=("int64",)),
    Row("expand", expand, dtypes=("bool",)),
    Row("permute", permute, dtypes=("int64",)),
    Row("transpose", transpose, dtypes=("int64",)),
    Row("T", reversed_axes),
    Row("narrow", narrow),
    Row("unbind", each),
    Row("__getitem__", item, dtypes=("int64",)),
    Row("cat", cat, dtypes=("int64",)),
    Row("float", astype("float32"), dtypes=("bool", "int32", "int64"), floats=("float32",)),
    Row("double", astype("float64"), dtypes=("bool", "int32", "int64"), floats=("float64",)),
    Row("long", astype("int64"), dtypes=("bool", "int32", "int64"), floats=()),
)
