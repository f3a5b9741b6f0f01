"""Runs a build to its end, by processes, job arrays or Ray."""
