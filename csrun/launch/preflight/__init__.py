"""The checks of `csrun site check` that any scheduler's nodes have: facts of a node, judged."""
