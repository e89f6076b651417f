"""Rows that a mask of the batch selects, padded so that one program serves several numbers."""
