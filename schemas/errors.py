"""The one error of this package."""


class FormatError(ValueError):
    """A file is damaged, or is not what it claims to be.

    One sentence with file, place, what was found and expected.
    """
