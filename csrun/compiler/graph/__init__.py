"""Graph of a traced model: operators, arrays as views of base buffers, and what a kernel is."""
