"""Recording of a step of the user's loop: what it computes, on what, in which lines."""
