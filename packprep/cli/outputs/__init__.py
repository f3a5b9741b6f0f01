"""A finished output in; another output, or its place on the hub, out: a module per command."""
