"""Import of the tasks' modules by the process that forks them."""

import gc
import importlib
import traceback
from collections.abc import Iterable

from csrun.context import use_keras_2_for_tensorflow

ALWAYS = ("numpy",)  # modules that tasks of each of csrun's interpreters need


def preload(modules: Iterable[str]) -> None:
    """Import the modules that tasks will need, once for all tasks forked from this process."""
    if "tensorflow" in (modules := tuple(modules)):
        use_keras_2_for_tensorflow()
    gc.disable()  # finds nothing, and takes a fifth of the time of PyTorch's import
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # the task that imports it fails and reports the error
            traceback.print_exc()
    from csrun.launch.process.task_process import blas  # finds NumPy's BLAS

    blas()
    gc.freeze()  # prevents copies of shared pages by the tasks' garbage collectors
    gc.enable()
