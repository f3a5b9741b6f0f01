"""Token files in; documents, segments, mixes and the packs of one window out."""
