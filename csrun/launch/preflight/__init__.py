"""Checks of `csrun site check` for the nodes of any scheduler."""
