"""Below all packages: errors, modes, framing, whole-file I/O, YAML, HTML, version."""
