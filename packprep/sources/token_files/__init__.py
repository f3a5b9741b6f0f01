"""Finds where documents begin and end in files of token ids by other tools."""
