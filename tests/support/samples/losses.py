"""The oracle's table: losses of regression and of two classes."""

from support.samples.row import Row, only, skip

PLAIN = {"reduction": "mean", "weight": None}  # csrun's losses are means without weights


def mean_squared_error(nn, x, labels, **options):
    _plain(x, labels, **options)
    return nn.mean_squared_error(x, labels)


def mean_absolute_error(nn, x, labels, **options):
    _plain(x, labels, **options)
    return nn.mean_absolute_error(x, labels)


def huber(nn, x, labels, delta=1.0, **options):
    _plain(x, labels, **options)
    return nn.huber(x, labels, delta)


def binary_cross_entropy(nn, x, labels, pos_weight=None, **options):
    _plain(x, labels, **options)
    if pos_weight is not None:
        skip("pos_weight by class")
    return nn.binary_cross_entropy(x, labels)


def _plain(x, labels, **options):
    only(**{name: (found, PLAIN[name]) for name, found in options.items()})
    if x.shape != labels.shape:
        skip("shapes of a loss")


ROWS = (
    Row("nn.functional.mse_loss", mean_squared_error),
    Row("nn.functional.l1_loss", mean_absolute_error),
    Row("nn.functional.huber_loss", huber),
    Row("nn.functional.binary_cross_entropy_with_logits", binary_cross_entropy),
)
