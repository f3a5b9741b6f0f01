"""Rows whose tokens begin alike -> trees that hold each shared prefix once."""
