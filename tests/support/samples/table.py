"""All rows of the oracle, and what of csrun and of PyTorch's samples is left out, and why.

A new operator or function of csrun gets a row in a file of rows, as `elementwise` or `networks`:
the name of PyTorch's operator and the same written with csrun; an optimizer one in `learning`. What
PyTorch's databases do not have goes to OPERATORS or FUNCTIONS below, with the reason; a sample that
csrun cannot express is skipped in its row by `only` or `skip`, with the reason in SAMPLES; one that
csrun refuses stands in REFUSED.
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

#: Operators of CIRH that are in no program of the oracle.
OPERATORS = {
    "cirh.dropout_mask": "random, by csrun's own generator: tests/compiler/kernels/test_dropout.py",
    "cirh.rotary_embedding": "PyTorch has none: tests/compiler/kernels/test_rotary.py",
    "cirh.constant": "what a PyTorch loop makes besides: tests/pytorch/operators/test_operators.py",
    "cirh.sample_count": "of batches: means of random programs, tests/runtime/step/test_padding.py",
    "cirh.native_batch_norm": "of a batch's samples: tests/compiler/kernels/test_batch_norm.py",
    "cirh.native_batch_norm_backward": "of a batch's samples: test_batch_norm.py, too",
    "cirh.state": "what BatchNorm keeps: tests/compiler/kernels/test_batch_norm.py",
    "cirh.assign": "what BatchNorm keeps: tests/compiler/kernels/test_batch_norm.py",
    "cirh.lamb": "PyTorch has none: tests/compiler/test_optimizers.py",
    "cirh.adadelta": "of a PyTorch loop alone: tests/pytorch/optimizers/test_optimization.py",
    "cirh.adamax": "of a PyTorch loop alone: tests/pytorch/optimizers/test_optimization.py",
    "cirh.nadam": "of a PyTorch loop alone: tests/pytorch/optimizers/test_optimization.py",
    "cirh.radam": "of a PyTorch loop alone: tests/pytorch/optimizers/test_optimization.py",
    "cirh.select_backward": "a pass makes slice_backward of it, which select's samples have",
    "cirh.add_product": "of matrices that come in parts: tests/compiler/test_cutting.py",
    "cirh.embedding_part": "of such tables: tests/compiler/test_cutting.py",
    "cirh.embedding_part_backward": "of such tables: tests/compiler/test_cutting.py",
    "cirh.log_sum_exp_part": "of such heads: tests/compiler/test_cutting.py",
    "cirh.nll_loss_of_sums": "of such heads: tests/compiler/test_cutting.py",
    "cirh.nll_loss_part_backward": "of such heads: tests/compiler/test_cutting.py",
    "cirh.apply_gradient": "what a pass makes of minimize, and the next one of it",
}

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
    ("t-matrix_transposed", "t of what is no matrix"): "CIRH's transposes matrices",
    ("narrow-narrow", "a start that is a tensor"): "shapes are known when a model is traced",
    ("unbind-each", "dim"): "iteration is over the first axis",
    ("addmm-addmm", "what is added as a matrix"): "CIRH's adds a bias to each row",
    ("nn.functional.linear-dense", "shapes of a layer"): "a layer takes [B, ..., features]",
    ("nn.functional.linear-biased", "shapes of a layer"): "a layer takes [B, ..., features]",
    ("add-positioned", "shapes of positions"): "the layer takes [B, T, D]",
    ("argmax-argmax", "dim and keepdim of argmax"): _NO_SUCH,
    ("softmax-softmax", "softmax of a number"): "CIRH's is along an axis",
    ("log_softmax-log_softmax", "softmax of a number"): "CIRH's is along an axis",
    ("native_layer_norm-native_layer_norm", "norm without weights"): "CIRH's has weights",
    ("nn.functional.rms_norm-fused_rms_norm", "norm without weights"): "CIRH's has weights",
    ("nn.functional.layer_norm-layer_norm", "shapes of a norm"): _NORM,
    ("nn.functional.rms_norm-rms_norm", "shapes of a norm"): _NORM,
    ("nn.functional.embedding-embedding", "max_norm"): _NO_SUCH,
    ("nn.functional.embedding-embedding", "scale_grad_by_freq"): _NO_SUCH,
    ("nn.functional.embedding-embedding", "sparse"): _NO_SUCH,
    ("nn.functional.embedding-rows_of_a_table", "max_norm"): _NO_SUCH,
    ("nn.functional.embedding-rows_of_a_table", "scale_grad_by_freq"): _NO_SUCH,
    ("nn.functional.embedding-rows_of_a_table", "sparse"): _NO_SUCH,
    ("nn.functional.scaled_dot_product_attention-attention", "attention without heads"): _HEADS,
    ("nn.functional.scaled_dot_product_attention-attention", "dropout_p"): _RANDOM,
    ("nn.functional.nll_loss-nll_loss", "reduction"): "CIRH's is the sum",
    ("nn.functional.nll_loss-nll_loss", "weight"): "classes have no weights",
    ("nn.functional.nll_loss-nll_loss", "nll_loss of another rank"): "CIRH's is of rows",
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
_SECOND = "its kernel is along the second of up to three axes, as csrun.nn has them: the other row"
_FUSED = "the backward operator and its kernel are a loss's: nn.softmax_cross_entropy's"

#: Samples that csrun refuses, by row and what it says; and why that is as it is documented.
REFUSED: dict[tuple[str, str], str] = {
    ("__getitem__-item", "an index must consist of integers, slices, ... and None"): _INDEX,
    ("cat-cat", "dim must be in 0..0, got 1"): "PyTorch still takes an empty list of any rank",
    ("sum-total", "does not fit shape []"): _NUMBER,
    ("mean-mean", "does not fit shape []"): _NUMBER,
    ("argmax-argmax", "axis -1 is out of range for shape []"): _NUMBER,
    ("softmax-softmax", "no kernel for cirh.softmax"): _SECOND,
    ("softmax", "does not fit shape []"): _NUMBER,
    ("gather-gather", "does not fit shape []"): _NUMBER,
    ("gather-gather", "got uint8"): "CIRH's integers are of 32 and 64 bits",
    ("index_select-index_select", "does not fit shape []"): _NUMBER,
    ("amax-found", "does not fit shape []"): _NUMBER,
    ("amin-found", "does not fit shape []"): _NUMBER,
    ("max-reduction_with_dim-found", "is out of range for shape []"): _NUMBER,
    ("min-reduction_with_dim-found", "is out of range for shape []"): _NUMBER,
    ("log_softmax", "does not fit shape []"): _NUMBER,
    ("log_softmax-log_softmax", "no kernel for cirh.log_softmax"): _SECOND,
    ("nn.functional.nll_loss-nll_loss", "no kernel for cirh.nll_loss_forward"): _FUSED,
    ("native_layer_norm-native_layer_norm", "eps must be >= 0, got -0.5"): "as the operator says",
    ("nn.functional.rms_norm-fused_rms_norm", "eps must be >= 0, got -0.5"): "as it says",
    (
        "nn.functional.scaled_dot_product_attention-attention",
        "a mask must not depend on parameters",
    ): "csrun's masks are not trained",
}
