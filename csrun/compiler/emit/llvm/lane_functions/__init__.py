"""Functions of lanes: elementary functions, conversions to 16 bits, random words."""
