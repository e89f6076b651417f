"""Executable → trained weights: `roles` play a run, `step` computes, `wire`, `remote` connect."""
