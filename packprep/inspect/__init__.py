"""Shows the contents of an output, and checks that it is sound."""
