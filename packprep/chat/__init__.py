"""Conversations in; text, ids and loss masks out."""
