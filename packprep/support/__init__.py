"""Errors, progress, memory, threads, hashing and locks that all rooms use."""
