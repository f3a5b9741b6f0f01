"""Version of packprep.

It has a module of its own in the lowest room, so that every room can import it. It is a constant,
because `importlib.metadata` slows down --help and fails in a checkout that is not installed.
"""

__version__ = "0.1.0"  # the same as in pyproject.toml
