"""Renders chat templates in a sandbox, and records what they ask about each text."""
