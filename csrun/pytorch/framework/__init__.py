"""Scripts of the original's later releases: what they import as `cerebras.framework.torch`."""
