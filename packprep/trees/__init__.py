"""Rows whose tokens begin alike in; trees that hold each shared prefix once out."""
