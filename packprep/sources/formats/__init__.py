"""Reads the rows of an open file, one module per format."""
