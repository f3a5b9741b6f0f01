"""The one error of this package."""


class FormatError(ValueError):
    """A file is damaged, or is not what it claims to be.

    The message is one sentence with the file, the place, what was found and what was expected.
    """
