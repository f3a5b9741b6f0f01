"""Packs in the files of other tools in; their faults out, without a manifest."""
