"""Module that scripts of the original's later releases import as `cerebras.framework.torch`."""
