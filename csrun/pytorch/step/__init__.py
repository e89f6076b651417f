"""Data types of a step: its state, tokens, expected calls, variants, queue entries."""
