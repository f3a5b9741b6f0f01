"""Parses arguments, prints text on the terminal, and returns an exit code."""
