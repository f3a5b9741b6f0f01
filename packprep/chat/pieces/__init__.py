"""Reads pieces of text and token ids, and encodes the parts of a row that they make."""
