"""Holds the compiled loops of packing, on arrays and numbers."""
