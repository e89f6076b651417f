"""Chief's clients of its peers: streamers, MemoryX, SwarmX and wafers, and the run over them."""
