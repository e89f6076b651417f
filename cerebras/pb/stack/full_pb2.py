"""Settings of the original's compiler, of which only target_num_replicas has an effect."""

from csrun.base.open_config import OpenConfig


class FullConfig(OpenConfig):
    """A namespace in which any setting may be made."""

    target_num_replicas: int = 1


__all__ = ["FullConfig"]
