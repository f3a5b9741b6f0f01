"""Decides which documents share a pack, from their lengths alone."""
