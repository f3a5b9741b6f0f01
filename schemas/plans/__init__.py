"""Loops that writer and reader share: they plan packs and trees, and cost segments."""
