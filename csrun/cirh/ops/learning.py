"""Operators of the learning algorithm, in the three forms of its lowering.

`minimize` is the user's request; the gradient pass converts it to one `apply_gradient` per
parameter; the learning algorithm's pass converts those to update operators.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, StringAttr, TensorType
from xdsl.ir import Operation
from xdsl.irdl import AnyAttr, irdl_op_definition, operand_def, opt_prop_def, prop_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.algorithms import (
    AdadeltaAttr,
    AdagradAttr,
    AdamAttr,
    AdamaxAttr,
    Algorithm,
    LambAttr,
    NAdamAttr,
    RAdamAttr,
    RmsPropAttr,
    SgdAttr,
    StepNumberAttr,
)
from csrun.cirh.ops.base import EFFECT_ASSEMBLY, CirhOp, Properties, Types, require_same
from csrun.cirh.ops.model import LeafOp, StateOp, require_scalar
from csrun.cirh.types import Tensor, dtype_of, type_of


@dataclass(frozen=True)
class Clipping:
    """Limits of gradients. None: there is no limit.

    clip_norm: of their global norm; all are scaled by one factor, as torch.nn.utils.clip_grad_norm_
        does.
    clip_each: of the norm of each parameter's gradient, scaled independently.
    clip_value: of the magnitude of each number.
    """

    clip_norm: float | None = None
    clip_each: float | None = None
    clip_value: float | None = None

    @classmethod
    def of(cls, op: "UpdatingOp | MinimizeOp") -> "Clipping":
        """The limits of an operator."""
        found = (op.clip_norm, op.clip_each, op.clip_value)
        return cls(*(None if each is None else each.value.data for each in found))

    def options(self) -> dict[str, float]:
        """Properties of an operator."""
        return {name: value for name, value in asdict(self).items() if value is not None}


UNLIMITED = Clipping()
_LIMITS = tuple(asdict(UNLIMITED))


class UpdatingOp(CirhOp):
    """A parameter and its gradient; changes the parameter, has no result.

    clip_norm, clip_each, clip_value: as in `Clipping`.
    loss_scaling: constants of the rule by which the loss is scaled; the gradients include the
        scale.
    earlier_updates: number of the parameter's updates before this step; absent if each step has
        updated it.
    """

    TAKES_TEXT: ClassVar = ("grad",)

    parameter = operand_def(TensorType)
    grad = operand_def(TensorType)
    clip_norm = opt_prop_def(FloatAttr)
    clip_each = opt_prop_def(FloatAttr)
    clip_value = opt_prop_def(FloatAttr)
    loss_scaling = opt_prop_def(DictionaryAttr)
    earlier_updates = opt_prop_def(StepNumberAttr)
    FORM: ClassVar = EFFECT_ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor | None:
        """No result; the gradient has its parameter's type."""
        require_same(types[0], types[1])
        _require_limits(properties)
        return None


@irdl_op_definition
class MinimizeOp(CirhOp):
    """Train all parameters that the loss depends on; options as of the updates."""

    name = "cirh.minimize"
    loss = operand_def(TensorType)
    algorithm = prop_def(AnyAttr())
    clip_norm = opt_prop_def(FloatAttr)
    clip_each = opt_prop_def(FloatAttr)
    clip_value = opt_prop_def(FloatAttr)
    loss_scaling = opt_prop_def(DictionaryAttr)
    FORM: ClassVar = EFFECT_ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor | None:
        """No result; the loss is a scalar."""
        require_scalar(types[0])
        if not isinstance(properties["algorithm"], Algorithm):
            raise VerifyException(f"unknown learning algorithm {properties['algorithm']}")
        _require_limits(properties)
        return None


@irdl_op_definition
class LossScaleOp(LeafOp):
    """The factor of the loss in this step, a scalar."""

    name = "cirh.loss_scale"
    NUMBER: ClassVar = "step.loss_scale"
    FORM: ClassVar = "attr-dict `:` type($out)"

    def compute(self) -> Any:
        """1: the updates of the reference do not unscale."""
        return np.ones((), dtype_of(type_of(self.out)))


@irdl_op_definition
class ApplyGradientOp(UpdatingOp):
    """Pass a parameter's gradient to the learning algorithm."""

    name = "cirh.apply_gradient"
    algorithm = prop_def(AnyAttr())


@irdl_op_definition
class SgdOp(UpdatingOp):
    """One parameter's update by stochastic gradient descent."""

    name = "cirh.sgd"
    algorithm = prop_def(SgdAttr)


@irdl_op_definition
class AdamOp(UpdatingOp):
    """One parameter's update by Adam or AdamW."""

    name = "cirh.adam"
    algorithm = prop_def(AdamAttr)


@irdl_op_definition
class LambOp(UpdatingOp):
    """One parameter's update by Lamb."""

    name = "cirh.lamb"
    algorithm = prop_def(LambAttr)


@irdl_op_definition
class AdagradOp(UpdatingOp):
    """One parameter's update by Adagrad."""

    name = "cirh.adagrad"
    algorithm = prop_def(AdagradAttr)


@irdl_op_definition
class RmsPropOp(UpdatingOp):
    """One parameter's update by RMSProp."""

    name = "cirh.rmsprop"
    algorithm = prop_def(RmsPropAttr)


@irdl_op_definition
class AdamaxOp(UpdatingOp):
    """One parameter's update by Adamax."""

    name = "cirh.adamax"
    algorithm = prop_def(AdamaxAttr)


@irdl_op_definition
class NAdamOp(UpdatingOp):
    """One parameter's update by NAdam."""

    name = "cirh.nadam"
    algorithm = prop_def(NAdamAttr)


@irdl_op_definition
class RAdamOp(UpdatingOp):
    """One parameter's update by RAdam."""

    name = "cirh.radam"
    algorithm = prop_def(RAdamAttr)


@irdl_op_definition
class AdadeltaOp(UpdatingOp):
    """One parameter's update by Adadelta."""

    name = "cirh.adadelta"
    algorithm = prop_def(AdadeltaAttr)


@irdl_op_definition
class AssignOp(UpdatingOp):
    """Set the next value of a state, like a gradient; the current step reads the old value.

    It only has an effect in training.
    """

    name = "cirh.assign"

    def verify_(self) -> None:
        """Raises: VerifyException unless the operand is a state"""
        super().verify_()
        if not isinstance(self.parameter.owner, StateOp):
            raise VerifyException(f"{self.name} in {self.where}: the target must be a state")


def _require_limits(properties: Properties) -> None:
    for name in _LIMITS:
        limit = properties.get(name)
        if isinstance(limit, FloatAttr) and not 0 < limit.value.data < inf:
            raise VerifyException(f"{name} must be > 0 and finite, got {limit.value.data}")


#: Scope of the operators of an update that is recorded with its step: they compute in float32 in
#: mixed precision, too, with the weights as stored.
UPDATE_SCOPE = "optimizer"


def is_of_update(op: Operation) -> bool:
    """True for an operator of a recorded update."""
    scope = op.properties.get("scope")
    return isinstance(scope, StringAttr) and scope.data == UPDATE_SCOPE


#: The update operator of each algorithm.
UPDATES: Mapping[type[Algorithm], type[UpdatingOp]] = {
    SgdAttr: SgdOp,
    AdamAttr: AdamOp,
    LambAttr: LambOp,
    AdagradAttr: AdagradOp,
    RmsPropAttr: RmsPropOp,
    AdamaxAttr: AdamaxOp,
    NAdamAttr: NAdamOp,
    RAdamAttr: RAdamOp,
    AdadeltaAttr: AdadeltaOp,
}
OPS = (MinimizeOp, LossScaleOp, ApplyGradientOp, AssignOp, *UPDATES.values())
