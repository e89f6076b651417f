"""Commands of the admin shell, one file per noun."""
