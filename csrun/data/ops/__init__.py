"""Operations of a chain, one per module: on indexed data and on streams."""
