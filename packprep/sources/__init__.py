"""Names in; files with digests, their rows, and units of them out."""
