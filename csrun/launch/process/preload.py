"""Modules that tasks import, imported once by the process that forks them."""

import gc
import importlib
import traceback
from collections.abc import Iterable

from csrun.context import use_keras_2_for_tensorflow

ALWAYS = ("numpy",)  # of what each Python of csrun's wants


def preload(modules: Iterable[str]) -> None:
    """Import what the tasks will want, once for all that are forked from this process."""
    if "tensorflow" in (modules := tuple(modules)):
        use_keras_2_for_tensorflow()
    gc.disable()  # finds nothing, and takes a fifth of PyTorch's import
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # a task that imports it fails in its own name, for the user to read
            traceback.print_exc()
    from csrun.launch.process.task_process import blas  # looks for NumPy's

    blas()
    gc.freeze()  # keeps the tasks' garbage collectors from copying our pages
    gc.enable()
