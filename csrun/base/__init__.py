"""Modules that all packages may import: errors, modes, framing, files, YAML, HTML, version."""
