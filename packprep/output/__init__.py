"""Packs in; shards, the account and a signed output out, on a disk or in a store."""
