"""A tokenizer file in; a function from text to ids out, and why it is trusted."""
