"""csrun: the user toolchain of a Cerebras CS-2 installation, on any Linux machine."""

__version__ = "0.1.0"
