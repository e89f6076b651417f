"""The oracle's table: values looked up by their places, the largest and smallest."""

from support.samples.row import Row, only, skip


def gather(nn, x, dim, index, sparse_grad=False):
    only(sparse_grad=(sparse_grad, False))
    return nn.gather(x, index, dim)


def index_select(nn, x, dim, index):
    return nn.index_select(x, index, dim)


def stack(nn, tensors, dim=0):
    return nn.stack(tensors, dim)


def extremum(name):
    def found(nn, x, dim=None, keepdim=False):
        axes = tuple(range(len(x.shape))) if dim in (None, (), []) else dim
        return getattr(nn, name)(x, axes, keepdim)

    return found


def chosen(name):
    def found(nn, x, dim=None, keepdim=False):
        """PyTorch gives the places, too."""
        if dim is None:
            skip("an extremum of all values")
        return [getattr(nn, name)(x, dim, keepdim), _places(nn, name, x, dim, keepdim)]

    return found


def _places(nn, name, x, dim, keepdim):
    places = nn.argmax(x if name == "max" else -x, dim)
    axis = dim % len(x.shape)
    kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return nn.reshape(places, kept) if keepdim else places


REALS = ("int32", "int64")

ROWS = (
    Row("gather", gather),
    Row("index_select", index_select, dtypes=("bool", *REALS)),
    Row("stack", stack, dtypes=("int64",)),
    Row("amax", extremum("amax"), dtypes=REALS),
    Row("amin", extremum("amin"), dtypes=REALS),
    Row("max", chosen("max"), "reduction_with_dim", dtypes=REALS),
    Row("min", chosen("min"), "reduction_with_dim", dtypes=REALS),
)
