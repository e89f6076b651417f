"""Mixed precision requested by a Keras model: dtype policies of its layers, and its loss scale.

A 16-bit policy selects the format in which csrun stores numbers. csrun's rules, not casts between
layers, determine what is stored in 16 bits.
"""

import logging
from typing import Any

from msgspec.structs import replace

from csrun.base.errors import UsageError
from csrun.base.half_formats import HalfFormat, storage_format
from csrun.base.precision_names import MIXED
from csrun.executable.loss_scale import LossScaling, dynamic
from csrun.keras.torch_backend import keras

log = logging.getLogger("csrun")

HALF_TYPES = ("float16", "bfloat16")


def storage_of(model: Any, configured: HalfFormat | None) -> HalfFormat | None:
    """Return the 16-bit format of a run: the configured one, or else that of the layers.

    Raises: UsageError for layers of two formats, or whose variables are not float32
    """
    policies = {layer.compute_dtype: layer for layer in _typed_layers(model)}
    halves = sorted(set(policies) & set(HALF_TYPES))
    if len(halves) > 1:
        named = " and ".join(f"{policies[each].name} in {each}" for each in halves)
        raise UsageError(f"a run stores numbers in one format, got layer {named}: use one policy")
    if configured is not None or not halves:
        return configured
    found = storage_format(f"{MIXED}{halves[0]}")
    assert found is not None, "one of the formats"
    log.info(f"Keras's policy mixed_{halves[0]}: numbers are stored as {found.text}")
    return found


def require_float32_variables(model: Any) -> None:
    """Raises: UsageError for a layer whose variables have another type"""
    for layer in _typed_layers(model):
        if layer.variable_dtype != "float32" or layer.compute_dtype not in ("float32", *HALF_TYPES):
            raise UsageError(
                f"policy {layer.dtype_policy.name} of layer {layer.name} is not supported: build "
                "the model with float32, mixed_float16 or mixed_bfloat16"
            )


def _typed_layers(model: Any) -> list[Any]:
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if layer.compute_dtype is not None]


def unscaled(optimizer: Any) -> tuple[Any, LossScaling | None]:
    """Return the optimizer that updates weights, and the rule of its loss scale, if it has one.

    Source: keras.optimizers.LossScaleOptimizer, whose rule is that of torch.amp with other
    constants
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        factor = getattr(optimizer, "loss_scale_factor", None)
        rule = LossScaling(float(factor), is_dynamic=False) if factor else None
        return optimizer, rule
    first, steps = float(optimizer.initial_scale), int(optimizer.dynamic_growth_steps)
    rule = dynamic("torch.amp")
    return optimizer.inner_optimizer, replace(rule, initial=first, steps_per_increase=steps)
