"""A config in; a finished build out, by processes, job arrays or Ray."""
