"""Holds the compiled loops of packing, on arrays and numbers."""

import os

# To colour an error, numba replaces sys.stdout and sys.stderr for a moment, and raises and catches
# hundreds while it loads and compiles. That is in another thread than the one that writes.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
