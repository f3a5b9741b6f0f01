"""A file of token ids by another tool in; where its documents begin and end out."""
