"""Console commands, one file each; setup.cfg lists them, `entry` starts them."""
