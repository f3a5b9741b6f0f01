"""Samples of a rollout in memory in; packs of them out, and samples again."""
