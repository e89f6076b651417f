"""Graph of a traced model: operators, arrays as views of base buffers, and the kernel interface."""
