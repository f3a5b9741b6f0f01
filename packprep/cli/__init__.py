"""Arguments in; text on the terminal and an exit code out."""
