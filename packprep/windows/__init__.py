"""Lists all windows, draws the documents of each, cuts them into segments and plans the packs."""
