"""Code generation: the text of a program from a plan."""
