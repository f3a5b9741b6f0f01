"""Finds the files that names mean, computes their digests, and cuts their rows into units."""
