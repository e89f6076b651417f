"""The operators of CIRH, one file per family, named after ATen's core set."""
