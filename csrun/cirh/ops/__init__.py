"""The operators of CIRH, a file a family, named after ATen's core set."""
