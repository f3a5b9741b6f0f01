"""Loops that plan packs and trees, which the writer compiles and the reader may run as they are."""
