"""The operations of a chain, one a file: what each does to data that are read by number, where it
only computes which numbers come, and what to data that come in turn."""
