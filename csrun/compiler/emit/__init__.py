"""Source text of the program that a plan becomes."""
