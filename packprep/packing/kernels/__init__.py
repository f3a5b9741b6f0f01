"""Holds the compiled loops of packing, on arrays and numbers."""

import packprep.schemas  # noqa: F401 (its settings of numba, before numba is loaded)
