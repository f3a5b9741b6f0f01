"""Makes documents of conversations and pieces: their text, and what of it is trained."""
