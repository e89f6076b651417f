"""Plan of a matched model: layers, groups, visits, memory, placement, estimates."""
