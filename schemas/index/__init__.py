"""Shards of an index output and its token files in; the columns of its packs out."""
