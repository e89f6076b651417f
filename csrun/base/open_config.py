"""Open namespace for settings of the original's compiler that csrun does not have."""

import logging
from typing import Any

log = logging.getLogger("csrun")


class OpenConfig:
    """Namespace in which any attribute path can be read and set.

    Settings are stored. Each is logged once as having no effect, unless a subclass declares it.
    """

    def __init__(self, path: str = "full_config") -> None:
        self.__dict__["_path"] = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.__dict__[name] = OpenConfig(f"{self._path}.{name}")
        return made

    def __call__(self, *values: Any) -> None:
        """Accept values appended to a setting, which has no effect either."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__ and not hasattr(type(self), name):
            log.info(f"{self._path}.{name} has no effect: it is a setting of another compiler")
        self.__dict__[name] = value
