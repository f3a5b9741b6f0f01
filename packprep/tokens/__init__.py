"""Encodes slices of text into token files, and keeps these in the token store."""
