"""Names of TensorFlow 2.2 that scripts of its time import and the installed version lacks.

`install` adds them when TensorFlow is imported, and imports nothing itself.
"""

import importlib
import sys
from collections.abc import Callable
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from csrun.base.errors import UsageError
from csrun.base.framework import TENSORFLOW
from csrun.context import use_keras_2_for_tensorflow
from csrun.tensorflow.checkpoint_state import add_checkpoint_state
from csrun.tensorflow.estimator_names import estimator_module
from csrun.tensorflow.script_precision import HALF_POLICIES
from csrun.tensorflow.script_precision import policies as asked

POLICIES = "tensorflow.keras.mixed_precision.experimental"
OLD_KERAS = "tensorflow.python.keras.mixed_precision"
OLD_LAYERS = "tensorflow.python.keras.layers"
_BEFORE_GROUPS = 6  # filters, kernel_size, strides, padding, data_format, dilation_rate
_HALF = ("float16", "bfloat16", *HALF_POLICIES)


def install() -> None:
    """Add the names to TensorFlow, now or when it is imported."""
    use_keras_2_for_tensorflow()
    if "tensorflow" in sys.modules:
        _add_names(sys.modules["tensorflow"])
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Finder that finds TensorFlow like the other finders, and adds the names to it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _NamesLoader(spec.loader)
        return spec


class _NamesLoader(Loader):
    """Loader that loads a module by another loader, and adds the names to it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _add_names(module)


def _add_names(tensorflow: Any) -> None:
    """Add the names that are missing."""
    if not hasattr(tensorflow, "estimator"):
        tensorflow.estimator = tensorflow.compat.v1.estimator = estimator_module()
        sys.modules.setdefault("tensorflow.estimator", tensorflow.estimator)
    if POLICIES in sys.modules:
        return
    add_checkpoint_state(tensorflow)
    _use_keras_2(tensorflow)
    keras = importlib.import_module("tensorflow.keras")
    if not hasattr(keras.mixed_precision, "experimental"):
        _add_policies(keras)
    for name in ("Conv1D", "Conv2D", "Conv3D"):
        _accept_old_order(getattr(keras.layers, name))
    old = f"{OLD_KERAS}.experimental"
    parent: Any = importlib.import_module(OLD_KERAS)
    if not hasattr(parent, "experimental"):
        optimizers = importlib.import_module(f"{OLD_KERAS}.loss_scale_optimizer")
        parent.experimental = _module(old, loss_scale_optimizer=optimizers)
        sys.modules[f"{old}.loss_scale_optimizer"] = optimizers
    layers = importlib.import_module(OLD_LAYERS)
    # In 2.2 these are tf.keras's classes; a model cannot mix layers of two Keras versions.
    common = {name for name in vars(layers) if name[0] != "_"} & set(dir(keras.layers))
    layers.__dict__.update({name: getattr(keras.layers, name) for name in common})


def _use_keras_2(tensorflow: Any) -> None:
    """Make `tensorflow.keras` Keras 2, if TensorFlow was imported before the names.

    Raises: UsageError if the script has used Keras 3 already, or Keras 2 is not installed
    """
    spec = find_spec("tf_keras")
    if spec is None or spec.origin is None:
        raise UsageError(
            f"Keras 2 is not installed, which TensorFlow 1 models use: {TENSORFLOW.install}"
        )
    folder = str(Path(spec.origin).parent / "api" / "_v2")
    if folder not in tensorflow.__path__:
        tensorflow.__path__.insert(0, folder)
    taken = sys.modules.get("tensorflow.keras")
    is_keras_3 = vars(tensorflow)["keras"].__dict__.get("_tfll_keras_version") == "keras_3"
    if is_keras_3 or "tf_keras" not in str(getattr(taken, "__file__", "tf_keras")):
        raise UsageError(
            "tf.keras is Keras 3 in this script, TensorFlow 1 models use Keras 2: set "
            "TF_USE_LEGACY_KERAS=1, or import cerebras.tf.cs_estimator before"
        )


def _module(name: str, **attributes: Any) -> ModuleType:
    made = ModuleType(name, "Stand-in of csrun.")
    made.__path__ = []
    made.__dict__.update(attributes)
    sys.modules[name] = made
    return made


def _add_policies(keras: Any) -> None:
    """Add policies, and the attributes of layers at that time."""
    policies = keras.mixed_precision

    def make_policy(name: Any, loss_scale: Any = None) -> Any:
        """Return a float32 policy for a 16-bit one, which is recorded."""
        made = policies.Policy(_widened(name))
        made.asked = name if name in HALF_POLICIES else None
        asked.of_layers = made.asked or asked.of_layers
        return made

    def set_policy(policy: Any) -> None:
        given = policy if hasattr(policy, "name") else make_policy(policy)
        asked.of_all = getattr(given, "asked", None)
        policies.set_global_policy(given)

    policies.experimental = _module(
        POLICIES,
        Policy=make_policy,
        set_policy=set_policy,
        global_policy=policies.global_policy,
        LossScaleOptimizer=policies.LossScaleOptimizer,
    )
    set_floatx: Callable[[str], None] = keras.backend.set_floatx
    keras.backend.set_floatx = lambda value: set_floatx(_widened(value))
    for name in ("dtype_policy", "compute_dtype", "variable_dtype"):
        _make_settable(keras.layers.Layer, name)


def _widened(name: Any) -> Any:
    """Return the name of a policy or float type, float32 for one with 16 bits."""
    return "float32" if name in _HALF else name


def _accept_old_order(layer: Any) -> None:
    """Let a convolution take its arguments by position in the order of TensorFlow 2.2.

    Later versions have `groups`, an integer, after the first ones, where 2.2 has the activation.
    """
    make = layer.__init__

    @wraps(make)
    def init(self: Any, *given: Any, **options: Any) -> None:
        first, rest = given[:_BEFORE_GROUPS], given[_BEFORE_GROUPS:]
        if rest and (rest[0] is None or isinstance(rest[0], str) or callable(rest[0])):
            rest = (1, *rest)
        make(self, *first, *rest, **options)

    layer.__init__ = init


def _make_settable(layer: Any, name: str) -> None:
    """Let a layer set a property to its current value, as layers of TensorFlow 2.2 do.

    Raises: AttributeError for another value
    """
    own = vars(layer)[name] if name in vars(layer) else getattr(layer, name)

    def assign(self: Any, value: Any) -> None:
        current = own.fget(self)
        if value != current and getattr(value, "name", value) != getattr(current, "name", current):
            raise AttributeError(f"{name} of a layer cannot be set to another value, got {value!r}")

    if isinstance(own, property) and own.fset is None:
        setattr(layer, name, own.setter(assign))
