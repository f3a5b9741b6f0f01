"""A config in; the figures of a build out, before it is made."""
