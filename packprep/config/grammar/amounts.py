"""Counts, sizes and shares as people write them: 2k, 1.5B, 4Ki; 64MB, 64MiB; 1%, 0.01."""

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_COUNT = re.compile(r"\s*([0-9][0-9_]{0,20}(?:\.[0-9]{1,20})?)\s*([kmbgt]|[kmgt]i)\s*", re.I)
_SIZE = re.compile(r"\s*([0-9.]+)\s*([kmgt]i?)?b?\s*", re.I)
_PERCENT = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})\s*%\s*")


def count_of(text: str) -> int | None:
    """Return the whole number of "2k" (2,000), "2Ki" (2,048), "1.5B" or "8"; None for others."""
    if match := _COUNT.fullmatch(text):
        amount = Fraction(match[1].replace("_", "")) * _UNITS[match[2].lower()]
        return int(amount) if amount.denominator == 1 else None
    try:
        return int(text)
    except ValueError:
        return None


def size_of(text: str) -> int | None:
    """Return the bytes of "64MB" (64,000,000), "1.5GiB" or "4096"; None for others."""
    match = _SIZE.fullmatch(text)
    try:
        return int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else None
    except (ValueError, OverflowError):
        return None


def share_of(text: str) -> float | None:
    """Return 0.01 for "1%" and "0.01"; None for a text that is no number."""
    try:
        return float(str(without_percent(text)))
    except ValueError:
        return None


def counted(value: object) -> object:
    """Return the number of a text that is a count; other values unchanged."""
    count = count_of(value) if isinstance(value, str) else None
    return value if count is None else count


def without_percent(value: object) -> object:
    """Return "0.01" for "1%", exactly; other values unchanged."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else str(Decimal(match[1]).scaleb(-2))


def exact(value: Any) -> Fraction | None:
    """Return the number of 0.1 or "0.1" exactly, one tenth; None for others."""
    try:
        if isinstance(value, bool) or not math.isfinite(size := float(value)):
            return None
        return Fraction(str(value).strip()) if size else Fraction(0)  # "1e-999999999" is slow
    except (TypeError, ValueError, OverflowError):
        return None
