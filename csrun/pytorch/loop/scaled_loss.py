"""Scaling of a loop's loss: the scaler in use, and a check that each step does as step 1 did."""

import logging

from csrun.base.errors import UsageError
from csrun.base.half_formats import storage_format
from csrun.base.precision_names import CB16
from csrun.executable.loss_scale import CB16_UNSCALED
from csrun.pytorch.amp.grad_scaler import GradScaler
from csrun.pytorch.errors import user_line
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.optimizers.optimization import LossScale
from csrun.pytorch.run.script_run import ScriptRun

log = logging.getLogger("csrun")


class ScaledLoss:
    """Use of scalers by a Session's loop. A scaler only has an effect in mixed precision.

    half: the 16-bit format of the run.
    """

    def __init__(self, run: ScriptRun, optimization: Optimization | None) -> None:
        self._run, self._optimization = run, optimization
        config = run.run.config
        self.half = storage_format(config.precision, config.cb16_exponent_bias)
        self._scaler: GradScaler | None = None
        self._is_scaled = False

    def scale(self, scaler: GradScaler) -> None:
        """Scale the loss whose `backward()` comes next.

        Raises: UsageError for a second scaler
        """
        if self._optimization is None:
            return
        if self.half is None:
            if self._scaler is None and scaler.is_enabled():
                log.info(f"{user_line()}: a float32 run: the loss is not scaled")
            self._scaler = scaler
            return
        known = self._optimization.scaler
        if known is not None and known is not scaler:
            raise UsageError(
                f"{user_line()}: a loss is scaled by another GradScaler than in earlier steps: "
                "use one for all steps"
            )
        self._scaler, self._is_scaled = scaler, True

    def begin_backward(self) -> None:
        """Begin a `backward()`: the first one determines whether the loss of the run is scaled.

        Raises: UsageError if a step differs from the first one
        """
        optimization, is_scaled = self._optimization, self._is_scaled
        self._is_scaled = False
        if optimization is None or self.half is None:
            return
        if not optimization.is_scaling_known:
            self._settle(optimization, is_scaled)
        elif is_scaled != (optimization.scaler is not None):
            now, before = ("is", "was not") if is_scaled else ("is not", "was")
            raise UsageError(
                f"{user_line()}: the loss {now} scaled by a GradScaler in this step and {before} "
                "in the first one: scale it in all steps, or in none"
            )

    def _settle(self, optimization: Optimization, is_scaled: bool) -> None:
        optimization.is_scaling_known = True
        scaler = optimization.scaler = self._scaler if is_scaled else None
        rule = None if scaler is None else scaler.scaling(self.half)
        is_cb16 = self.half is not None and self.half.name == CB16
        if is_cb16 and (rule is None or not rule.is_dynamic):
            log.info(f'{user_line()}: {CB16_UNSCALED} GradScaler(loss_scale="dynamic")')
        if scaler is not None and rule is not None:
            first = scaler.first(self.half)
            optimization.scaled = LossScale(rule, first, scaler.max_gradient_norm)
            scaler.applied_by(self._run)
