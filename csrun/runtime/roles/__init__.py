"""The roles of a run, a file each, and the chief's loop that drives them."""
