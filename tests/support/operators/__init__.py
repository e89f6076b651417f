"""The table of CIRH's operators: in CIRH, in PyTorch, and operands to try them on.

All checks run from it: in tests/cirh/test_operators.py the reference, and its gradients by autograd
and by finite differences; in tests/compiler/test_operators.py the compiled programs.
"""

from collections.abc import Mapping, Sequence

from support.operators import arrays, elementwise, images, matrices, networks
from support.operators.cases import Case, normal
from support.operators.elementwise import OTHERS, TIES, WITH_ZERO, ZEROS

__all__ = ["CASES", "ELSEWHERE", "FORWARD", "OTHERS", "TIES", "WITH_ZERO", "ZEROS", "normal"]

FORWARD: Sequence[Case] = (
    *elementwise.FORWARD,
    *arrays.FORWARD,
    *networks.FORWARD,
    *images.FORWARD,
)
CASES: Sequence[Case] = (
    *FORWARD,
    *elementwise.WITHOUT_GRADIENT,
    *arrays.WITHOUT_GRADIENT,
    *networks.WITHOUT_GRADIENT,
    *images.WITHOUT_GRADIENT,
    *matrices.WITHOUT_GRADIENT,
)

_UPDATES = "tests/cirh/test_updates.py"  # beside PyTorch's optimizers and formulas
_MODULES = "tests/cirh/test_text.py"  # in modules as text

#: Operators that compute no value of operands, and the tests that have them.
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("sgd", "adam", "lamb", "adagrad", "rmsprop", "adamax"), _UPDATES),
    **dict.fromkeys(("nadam", "radam", "adadelta"), _UPDATES),
    **dict.fromkeys(("input", "parameter", "loss", "output", "minimize", "full"), _MODULES),
    "loss_scale": "tests/compiler/test_mixed_precision.py",
    "apply_gradient": "tests/cirh/test_passes.py",
    "constant": "tests/cirh/test_batch_axes.py",
    "sample_count": "tests/runtime/step/test_padding.py",
    "valid_samples": "tests/cirh/test_batch_axes.py",
    "first_sample": _MODULES,
    "dropout_mask": "tests/compiler/kernels/test_dropout.py",
    "uniform": "tests/keras_estimator/test_random_numbers.py",
    "state": "tests/compiler/kernels/test_batch_norm.py",
    "assign": "tests/compiler/kernels/test_batch_norm.py",
}
