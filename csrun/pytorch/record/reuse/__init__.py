"""Reuse of earlier recorded steps: their calls, operators and backward passes."""
