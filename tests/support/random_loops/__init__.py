"""Training loops drawn from a seed, as users write them around `cbtorch.Session`.

A `Recipe` names what the loop has: a model and what its forward reads, an optimizer, a scheduler,
and what changes around the steps (data set, frozen weights, hooks, optimizer state, settings).
`train` runs a recipe in plain PyTorch or on csrun, so that both are the same lines. Everything is
float64 and deterministic: losses and weights must agree to rounding.
"""
