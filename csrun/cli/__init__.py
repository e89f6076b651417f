"""The console commands, a file each; setup.cfg names them, `entry` starts them."""
