"""Lengths in; a PackPlan out, and nothing here knows of text."""
