"""Checks options from the command line, YAML or Python, and makes one BuildConfig of them."""
