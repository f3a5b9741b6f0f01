"""Plain values in; errors, progress, memory, threads, hashing and locks for all rooms out."""
