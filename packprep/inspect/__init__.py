"""An output in; its contents out, and whether it is sound."""
