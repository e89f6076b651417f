"""Below all rooms: errors, modes, framing, whole-file reading and writing, YAML, HTML, version."""
