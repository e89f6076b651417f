"""csrun: the user toolchain of a Cerebras CS-2 installation, on any Linux machine."""

from csrun.base.version import VERSION

__version__ = VERSION
