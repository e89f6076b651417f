"""All rows of the oracle, and what of csrun and of PyTorch's samples is left out, and why.

A new function of csrun gets a row in a file of rows, as `elementwise` or `networks`: the name of
PyTorch's operator and the same written with csrun; an optimizer one in `learning`. What PyTorch's
databases do not have goes to FUNCTIONS below, with the reason; a sample that csrun cannot express
is skipped in its row by `only` or `skip`, with the reason in SAMPLES; one that csrun refuses stands
in REFUSED. Operators of CIRH have a separate table: tests/support/operators.
"""

from support.samples import comparisons, elementwise, images, lookups, losses, networks, shapes

ROWS = (
    *elementwise.ROWS,
    *comparisons.ROWS,
    *shapes.ROWS,
    *networks.ROWS,
    *losses.ROWS,
    *images.ROWS,
    *lookups.ROWS,
)

#: Names of csrun.nn that no row uses.
FUNCTIONS = {
    "Dropout": "random, by csrun's own generator: tests/compiler/kernels/test_dropout.py",
    "MultiHeadAttention": "PyTorch's has other weights: the models of tests/reference_models",
    "rotary_embedding": "PyTorch has none: tests/compiler/kernels/test_rotary.py",
    "sample_count": "of batches, which PyTorch does not know: tests/runtime/step/test_padding.py",
    "BatchNorm": "of a batch's samples: tests/compiler/kernels/test_batch_norm.py",
    "Lamb": "PyTorch has none: tests/compiler/test_optimizers.py",
    "scope": "names layers, and computes nothing",
    "initializers": "first values of weights, drawn by csrun's own generator",
    "metrics": "computed on the host: tests/nn/test_metrics.py",
    "summary": "outputs of a model, under a name",
    "schedules": "rates by step: PyTorch's database has one rate each",
    "Optimizer": "a type",
    "ShapeError": "a type",
    "Tensor": "a type, whose operators are in the rows of arithmetic",
    "TrainOp": "a type",
    "TRAIN": "a mode",
    "EVAL": "a mode",
    "PREDICT": "a mode",
}

_NORM = "the layer norms the last axis of two or more, and has weights: native_layer_norm's row"
_HEADS = "csrun's attention is [B, H, T, E]"
_RANDOM = "random, by PyTorch's generator"
_BATCH = "csrun's images come as a batch"
_MEAN = "csrun's is the mean"
_NO_SUCH = "csrun's function has no such option"

#: Samples that csrun cannot express, by row and by what their row says of them.
SAMPLES: dict[tuple[str, str], str] = {
    ("nn.functional.gelu-gelu_tanh", "approximate"): "this function is the other one",
    ("flatten-flatten", "start_dim"): "csrun's keeps the batch, and that alone",
    ("narrow-narrow", "a start that is a tensor"): "shapes are known when a model is traced",
    ("unbind-each", "dim"): "iteration is over the first axis",
    ("nn.functional.linear-dense", "shapes of a layer"): "a layer takes [B, ..., features]",
    ("nn.functional.linear-biased", "shapes of a layer"): "a layer takes [B, ..., features]",
    ("add-positioned", "shapes of positions"): "the layer takes [B, T, D]",
    ("argmax-argmax", "dim and keepdim of argmax"): _NO_SUCH,
    ("nn.functional.layer_norm-layer_norm", "shapes of a norm"): _NORM,
    ("nn.functional.rms_norm-rms_norm", "shapes of a norm"): _NORM,
    ("nn.functional.embedding-embedding", "max_norm"): _NO_SUCH,
    ("nn.functional.embedding-embedding", "scale_grad_by_freq"): _NO_SUCH,
    ("nn.functional.embedding-embedding", "sparse"): _NO_SUCH,
    ("nn.functional.scaled_dot_product_attention-attention", "attention without heads"): _HEADS,
    ("nn.functional.scaled_dot_product_attention-attention", "dropout_p"): _RANDOM,
    ("nn.functional.cross_entropy-cross_entropy", "reduction"): _MEAN,
    ("nn.functional.cross_entropy-cross_entropy", "weight"): "classes have no weights",
    ("nn.functional.cross_entropy-cross_entropy", "labels as probabilities"): _NO_SUCH,
    ("nn.functional.mse_loss-mean_squared_error", "reduction"): _MEAN,
    ("nn.functional.l1_loss-mean_absolute_error", "reduction"): _MEAN,
    ("nn.functional.huber_loss-huber", "reduction"): _MEAN,
    (
        "nn.functional.binary_cross_entropy_with_logits-binary_cross_entropy",
        "reduction",
    ): _MEAN,
    (
        "nn.functional.binary_cross_entropy_with_logits-binary_cross_entropy",
        "weight",
    ): _NO_SUCH,
    (
        "nn.functional.binary_cross_entropy_with_logits-binary_cross_entropy",
        "pos_weight by class",
    ): "csrun's is one number",
    ("nn.functional.conv2d-convolution", "an image without a batch"): _BATCH,
    (
        "nn.functional.conv2d-convolution",
        "same around windows without a middle",
    ): "as it says: docs/nn.md",
    ("nn.functional.max_pool2d-max_pool", "an image without a batch"): _BATCH,
    ("nn.functional.max_pool2d-max_pool", "ceil_mode"): _NO_SUCH,
    ("nn.functional.max_pool2d-max_pool", "return_indices"): _NO_SUCH,
    ("nn.functional.avg_pool2d-average_pool", "ceil_mode"): _NO_SUCH,
    ("nn.functional.avg_pool2d-average_pool", "divisor_override"): _NO_SUCH,
}

#: Options of the database of optimizers that csrun's do not have.
OPTIONS = {
    "maximize": "csrun minimizes",
    "dampening": "csrun's momentum has none",
    "amsgrad": "csrun's Adam has no such form",
}

_INDEX = "x[...] takes integers, slices, `...` and `None` (docs/nn.md)"
_NUMBER = "a number has no axis; PyTorch takes 0 and -1 for one"

#: Samples that csrun refuses, by row and what it says; and why that is as it is documented.
REFUSED: dict[tuple[str, str], str] = {
    ("__getitem__-item", "an index must consist of integers, slices, ... and None"): _INDEX,
    ("cat-cat", "dim must be in 0..0, got 1"): "PyTorch still takes an empty list of any rank",
    ("sum-total", "does not fit shape []"): _NUMBER,
    ("mean-mean", "does not fit shape []"): _NUMBER,
    ("argmax-argmax", "axis -1 is out of range for shape []"): _NUMBER,
    ("softmax", "does not fit shape []"): _NUMBER,
    ("gather-gather", "does not fit shape []"): _NUMBER,
    ("gather-gather", "got uint8"): "CIRH's integers are of 32 and 64 bits",
    ("index_select-index_select", "does not fit shape []"): _NUMBER,
    ("amax-found", "does not fit shape []"): _NUMBER,
    ("amin-found", "does not fit shape []"): _NUMBER,
    ("max-reduction_with_dim-found", "is out of range for shape []"): _NUMBER,
    ("min-reduction_with_dim-found", "is out of range for shape []"): _NUMBER,
    ("log_softmax", "does not fit shape []"): _NUMBER,
    (
        "nn.functional.scaled_dot_product_attention-attention",
        "a mask must not depend on parameters",
    ): "csrun's masks are not trained",
}
