"""Computes the figures of a build before it is made."""
