"""The version of packprep.

It is below everything that shows it; a name of the package itself would be above.

A constant, because asking `importlib.metadata` slows down --help and fails in a checkout that is
not installed.
"""

__version__ = "0.1.0"  # the same as in pyproject.toml
