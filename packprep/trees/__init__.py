"""Merges rows whose tokens begin alike into trees that hold each shared prefix once."""
