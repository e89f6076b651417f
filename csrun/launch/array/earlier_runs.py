"""Check of earlier trainings in an array's model_dirs: only equal values may resume."""

from collections.abc import Iterable
from pathlib import Path

from csrun.base import params_settings
from csrun.base.errors import UsageError
from csrun.base.flat_values import flattened
from csrun.launch.array.array_elements import ArrayElement
from csrun.records.run_comparison import parameters_of


def require_same_values(elements: Iterable[ArrayElement]) -> None:
    """Check that no element would resume a training with another value of its keys.

    Keys of `runconfig` may differ.

    Raises: UsageError for the first element with a difference
    """
    for element in elements:
        if element.model_dir is None or not element.values:
            continue
        earlier = parameters_of(Path(element.model_dir))
        values = {k: v for k, v in element.values.items() if not k.startswith("runconfig.")}
        for key, text in values.items():
            wanted = flattened(params_settings.parse(f"{key}={text}").value, f"train: {key}")
            for name, value in wanted.items():
                if name in earlier and earlier[name] != value:
                    raise UsageError(
                        f"{element.model_dir}: was trained with {key} = {earlier[name]}, --set says"
                        f" {text}: remove the folder, or choose another --model_dir"
                    )
