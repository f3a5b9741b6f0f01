"""Shows an output as a page, as numbers and beside others, and checks its numbers in CI."""
