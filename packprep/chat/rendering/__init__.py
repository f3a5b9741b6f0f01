"""A chat template and what it sees in; text, and what it asked about each text, out."""
