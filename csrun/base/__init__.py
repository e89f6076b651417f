"""Below all rooms: errors, modes, whole-file reading and writing, YAML, HTML, the version."""
