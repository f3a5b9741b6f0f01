"""Loads a tokenizer, and encodes text with the fastest engine that gives the same ids."""
