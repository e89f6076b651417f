"""Nouns of a step that is not recorded: tokens, expected calls, snapshots, compiled steps."""
