"""Open namespace for settings of the original's compiler, which csrun's does not have."""

import logging
from typing import Any

log = logging.getLogger("csrun")


class OpenConfig:
    """A namespace in which any attribute path may be read and set.

    Each setting is kept, and logged once as one without effect, unless a class declares it.
    """

    def __init__(self, path: str = "full_config") -> None:
        self.__dict__["_path"] = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.__dict__[name] = OpenConfig(f"{self._path}.{name}")
        return made

    def __call__(self, *values: Any) -> None:
        """Take values that are appended to a setting, which has no effect either."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__ and not hasattr(type(self), name):
            log.info(f"{self._path}.{name} has no effect: it is a setting of another compiler")
        self.__dict__[name] = value
