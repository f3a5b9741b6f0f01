"""Slices of text in; token files and the token store out."""
