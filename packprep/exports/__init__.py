"""Writes the packs of a finished output in formats that other trainers read."""
