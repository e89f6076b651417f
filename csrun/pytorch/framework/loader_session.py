"""Session block of the script's loop, for the model and optimizer that it has registered."""

from types import TracebackType

from csrun.base.errors import UsageError
from csrun.context import Preparation
from csrun.pytorch import session
from csrun.pytorch.errors import user_line
from csrun.pytorch.framework.script import end_step, script
from csrun.pytorch.loop.late_calls import late_calls
from csrun.pytorch.run.preparing import Prepared
from csrun.pytorch.user import SessionLoader


class Session(session.Session):
    """Block in which a loop over a loader runs on the wafer; mode: train or eval.

    Raises: UsageError if the script has registered no model, or no optimizer for a training
    """

    def __init__(self, dataloader: SessionLoader, mode: str = "train") -> None:
        state = script.state
        if state.model is None:
            raise UsageError(f"{user_line()}: Session: call cbtorch.module(model) first")
        if mode == "train" and state.optimizer is None:
            raise UsageError(f"{user_line()}: Session: call cbtorch.optimizer first")
        script.require_format_in_use()
        super().__init__(state.model, state.optimizer if mode == "train" else None, mode=mode)

    def wait(self) -> None:
        """In a run that only compiles, let the script continue after a step, until `prepare`."""
        assert isinstance(self._run, Prepared), "the script only compiles"
        self._run.waits = True

    def prepare(self, only: Preparation) -> None:
        """Compile the step of the loop, or match its kernels.

        Deferred calls of the step are dropped, because it has no values.
        """
        late_calls.clear()
        self._in_block.end_step()
        assert isinstance(self._run, Prepared), "the script only compiles"
        self._run.prepare(only)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if kind is None:
            end_step()
        else:
            late_calls.clear()
        return super().__exit__(kind, error, traceback)
