"""Types of arguments that are amounts, written as in a configuration: 2k, 64MB, 1%."""

from typing import Any

import click

from packprep.config.grammar.amounts import count_of, share_of, size_of


class CountType(click.ParamType):  # type: ignore[type-arg]
    """Type of a whole number of at least `least`, such as 2000, 2k or 2Ki."""

    name = "count"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        count = value if isinstance(value, int) else count_of(value)
        if count is None:
            self.fail(f"{value!r} is not a whole number such as 2000, 2k or 2Ki", param, context)
        if count < self._least:
            self.fail(f"{count:,} is less than {self._least}", param, context)
        return count


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """Type of a size in bytes, such as 500MB or 64MiB."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        size = value if isinstance(value, int) else size_of(value)
        if not size:
            self.fail(f"{value!r} is not a size such as 500MB or 64MiB", param, context)
        return size


class ShareType(click.ParamType):  # type: ignore[type-arg]
    """Type of a share such as 0.01 or 1%.

    checked: False if the command itself says which shares it takes.
    """

    name = "share"

    def __init__(self, *, checked: bool = True) -> None:
        self._checked = checked

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        share = value if isinstance(value, float) else share_of(value)
        if share is None or (self._checked and not 0 <= share <= 1):
            self.fail(f"{value} is not a share from 0 to 1, such as 0.01 or 1%", param, context)
        return share
