"""Turns conversations into text, token ids and loss masks."""
