"""Optimizers; a params file's `optimizer` section holds one of them.

optimizer:
  optimizer_type: adamw
  learning_rate: {scheduler: cosine, initial_learning_rate: 0.001, steps: 3000, warmup_steps: 100}
  weight_decay: 0.01
  exclude_from_weight_decay: [bias]
"""

import struct
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from xdsl.utils.exceptions import VerifyException

from csrun.base.callers import first_invalid_field
from csrun.cirh.algorithms import (
    AdagradAttr,
    AdamAttr,
    Algorithm,
    LambAttr,
    RmsPropAttr,
    ScheduleAttr,
    SgdAttr,
)
from csrun.cirh.ops.learning import UNLIMITED, Clipping
from csrun.executable.learning_rate import Constant, Schedule
from csrun.executable.loss_scale import LossScaling
from csrun.nn.errors import TraceError, user_line
from csrun.nn.gradient_options import Length, OptimizerError, Scaled
from csrun.nn.tensor import Tensor, require_floats
from csrun.records.update_summaries import NO_SUMMARIES, UpdateSummaries

Rate = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True)
class TrainOp:
    """A loss, the algorithm that minimizes it, limits of gradients, and the scaling of the loss.

    summaries: numbers of its updates for the events.
    """

    loss: Tensor
    algorithm: Algorithm
    clipping: Clipping = UNLIMITED
    loss_scaling: LossScaling | None = None
    summaries: UpdateSummaries = NO_SUMMARIES


class Learning(
    Scaled,
    frozen=True,
    forbid_unknown_fields=True,
    tag_field="optimizer_type",
    tag="learning",
):
    """Base of all optimizers: the learning rate, a number or a schedule, and clipping.

    Raises: OptimizerError for an option out of range
    """

    learning_rate: Rate | Schedule

    def __post_init__(self) -> None:
        """Check the options of optimizers that are created in code, not read from a params file."""
        rate, length = self.learning_rate, self.clip_norm
        try:
            if length is not None and not 0 < float(length) < inf:
                raise OptimizerError(f"clip_norm must be > 0 and finite, got {length}")
            if not isinstance(rate, Schedule | Real):
                raise OptimizerError(
                    "learning_rate must be a number or a schedule such as "
                    f"nn.schedules.Cosine(0.001, steps=1000), got {rate!r}"
                )
            if not isinstance(rate, Schedule) and not float(rate) >= 0:
                raise OptimizerError(f"learning_rate must be >= 0, got {rate}")
            self.algorithm()
            self.loss_scaling()
            self.clipping()
            self.summaries()
        except OptimizerError:
            raise
        except VerifyException as error:
            raise OptimizerError(str(error)) from error
        except (TypeError, ValueError, AttributeError, struct.error) as error:
            raise OptimizerError(first_invalid_field(self) or str(error)) from error

    def algorithm(self) -> Algorithm:
        """The learning algorithm as an attribute of CIRH."""
        raise NotImplementedError

    def minimize(self, loss: Tensor) -> TrainOp:
        """Return the train_op of a model function.

        Raises: TraceError for a loss that is not a scalar of the model
        """
        require_loss("minimize", loss)
        return TrainOp(
            loss, self.algorithm(), self.clipping(), self.loss_scaling(), self.summaries()
        )


class SGD(Learning, frozen=True, forbid_unknown_fields=True, tag="sgd"):
    """Stochastic gradient descent: v = momentum * v + gradient, w = w - learning_rate * v.

    Weight decay adds weight_decay * w to the gradient. exclude_from_weight_decay: regular
    expressions searched for in parameter names; a match is not decayed.

    Source: Sutskever et al. 2013, section 2, in the form of torch.optim.SGD
    """

    momentum: Share = 0.0
    nesterov: bool = False
    weight_decay: Rate = 0.0
    exclude_from_weight_decay: tuple[str, ...] = ()

    def algorithm(self) -> Algorithm:
        return SgdAttr.of(
            schedule_attribute(self.learning_rate),
            self.momentum,
            self.nesterov,
            self.weight_decay,
            self.exclude_from_weight_decay,
        )


class Adam(Learning, frozen=True, forbid_unknown_fields=True, tag="adam"):
    """Adam; weight decay adds weight_decay * w to the gradient.

    bias_correction: divide the moments by 1 - beta^t, as they start at zero.
    epsilon_hat: TensorFlow's form, which adds epsilon to the root of the second moment before the
    bias correction instead of after it.
    exclude_from_weight_decay: as in SGD
    Source: Kingma and Ba 2015, algorithm 1, in the form of torch.optim.Adam; epsilon_hat: the end
    of section 2
    """

    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Length = 1e-8
    epsilon_hat: bool = False
    bias_correction: bool = True
    weight_decay: Rate = 0.0
    exclude_from_weight_decay: tuple[str, ...] = ()

    def algorithm(self) -> Algorithm:
        return _adam(self, decoupled=False)


class AdamW(Learning, frozen=True, forbid_unknown_fields=True, tag="adamw"):
    """Adam with decoupled weight decay: w = w - learning_rate * weight_decay * w.

    bias_correction, epsilon_hat: as in Adam; exclude_from_weight_decay: as in SGD
    Source: Loshchilov and Hutter 2019, algorithm 2, in the form of torch.optim.AdamW
    """

    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Length = 1e-8
    epsilon_hat: bool = False
    bias_correction: bool = True
    weight_decay: Rate = 0.01
    exclude_from_weight_decay: tuple[str, ...] = ()

    def algorithm(self) -> Algorithm:
        return _adam(self, decoupled=True)


class Lamb(Learning, frozen=True, forbid_unknown_fields=True, tag="lamb"):
    """LAMB: Adam's update plus weight decay, scaled to the parameter's norm, for large batches.

    bias_correction: as in Adam; exclude_from_weight_decay: as in SGD
    Source: You et al. 2020, algorithm 2
    """

    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Length = 1e-6
    bias_correction: bool = True
    weight_decay: Rate = 0.01
    exclude_from_weight_decay: tuple[str, ...] = ()

    def algorithm(self) -> Algorithm:
        return LambAttr.of(
            schedule_attribute(self.learning_rate),
            (self.beta1, self.beta2),
            self.epsilon,
            self.bias_correction,
            self.weight_decay,
            self.exclude_from_weight_decay,
        )


class Adagrad(Learning, frozen=True, forbid_unknown_fields=True, tag="adagrad"):
    """Adagrad: the learning rate over the root of the sum of squared gradients so far.

    lr_decay: step t, from 0, uses learning_rate / (1 + t * lr_decay). initial_accumulator: initial
    sum of squares. exclude_from_weight_decay: as in SGD

    Source: Duchi et al. 2011, section 1.1, in the form of torch.optim.Adagrad
    """

    lr_decay: Rate = 0.0
    initial_accumulator: Rate = 0.0
    epsilon: Length = 1e-10
    weight_decay: Rate = 0.0
    exclude_from_weight_decay: tuple[str, ...] = ()

    def algorithm(self) -> Algorithm:
        return AdagradAttr.of(
            schedule_attribute(self.learning_rate),
            self.lr_decay,
            self.initial_accumulator,
            self.epsilon,
            self.weight_decay,
            self.exclude_from_weight_decay,
        )


class RMSProp(Learning, frozen=True, forbid_unknown_fields=True, tag="rmsprop"):
    """RMSProp: gradients over the root of a running mean of squares; their variance if centered.

    alpha: decay of the running means. exclude_from_weight_decay: as in SGD
    Source: Tieleman and Hinton 2012, lecture 6e, in the form of torch.optim.RMSprop
    """

    alpha: Share = 0.99
    epsilon: Length = 1e-8
    momentum: Share = 0.0
    centered: bool = False
    weight_decay: Rate = 0.0
    exclude_from_weight_decay: tuple[str, ...] = ()

    def algorithm(self) -> Algorithm:
        return RmsPropAttr.of(
            schedule_attribute(self.learning_rate),
            self.alpha,
            self.epsilon,
            self.momentum,
            self.centered,
            self.weight_decay,
            self.exclude_from_weight_decay,
        )


Optimizer = SGD | Adam | AdamW | Lamb | Adagrad | RMSProp


def require_loss(name: str, loss: object) -> Tensor:
    """Return the loss.

    Raises: TraceError unless it is a scalar of the model
    """
    tensor = require_floats(name, loss)
    if tensor.shape:
        raise TraceError(
            f"{user_line()}: {name}: the loss must be a scalar, got shape {list(tensor.shape)}: "
            "reduce it, for example by nn.mean(loss)"
        )
    return tensor


def schedule_attribute(rate: float | Schedule) -> ScheduleAttr:
    """Return a learning rate as a CIRH attribute."""
    schedule = rate if isinstance(rate, Schedule) else Constant(float(rate))
    options: dict[str, Any] = {
        field.name: msgspec.convert(getattr(schedule, field.name), field.type)  # 1 as 1.0
        for field in msgspec.structs.fields(schedule)
    }
    return ScheduleAttr.of(str(schedule.__struct_config__.tag), options)


def _adam(optimizer: Adam | AdamW, decoupled: bool) -> AdamAttr:
    return AdamAttr.of(
        schedule_attribute(optimizer.learning_rate),
        (optimizer.beta1, optimizer.beta2),
        optimizer.epsilon,
        decoupled,
        optimizer.weight_decay,
        optimizer.exclude_from_weight_decay,
        optimizer.epsilon_hat,
        optimizer.bias_correction,
    )
