"""Command line, YAML or Python in; one checked BuildConfig out."""
