"""Bytes in; what packprep reads from them, compared with a simple reader, or its refusal out."""
