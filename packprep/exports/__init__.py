"""A finished output in; the same packs in a format that another trainer reads out."""
