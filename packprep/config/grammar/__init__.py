"""Reads what values of options say: amounts, names, parts, mixes and phases, and their rules."""
