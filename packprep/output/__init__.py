"""Writes shards, their account and the signed output, on a disk or in a store."""
