"""Recording of a step of the user's loop: its operators, their operands and source lines."""
