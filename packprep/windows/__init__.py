"""Draws the documents of each window, cuts them into segments and plans the packs."""
