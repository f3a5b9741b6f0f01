"""Values of columns: what a row may have, and the problem of a row that has something else.

Nothing is cast or guessed: a value that is not what its column must have is a problem of its row.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..schemas.views import numpy_values
from ..support.errors import brief

_ROWS = 1000  # of a table of parsed rows
_STRINGS = ("string", "large_string", "string_view")
_WORDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


class Problem(NamedTuple):
    """A problem of a row. reason: as report.json counts it. detail: without file and row."""

    reason: str
    detail: str


Problems = dict[int, Problem]
Row = Mapping[str, Any] | Problem
"""Values of a row by column, or its problem."""


class Kind(NamedTuple):
    """Values of a column.

    read: f(value) -> what tables have; ValueError says what the value is. type: in tables; None for
    that of the values. value: what it must be, in words. reason: of the problem of a row with
    another one. json: types that JSON is parsed to, the first that fits; none if values of any type
    are taken. limits: least and most of numbers. is_needed: in each row. is_beside: a source need
    not have the column.
    """

    read: Callable[[Any], Any]
    type: Any = None
    value: str = ""
    reason: str = ""
    json: tuple[Any, ...] = ()
    limits: tuple[float, float] | None = None
    is_needed: bool = False
    is_beside: bool = False


Columns = Mapping[str, Kind]


class Raw(NamedTuple):
    """Rows as a format reads them: the wanted columns, null where a row has none.

    problems: by row of the table; what such a row has does not count. names: of all columns of the
    source, where the table begins it.
    """

    table: pa.Table
    problems: Problems
    names: Sequence[str]


def shown(value: Any) -> str:
    """A value in few words."""
    if isinstance(value, pa.DataType):
        return str(value)
    words = (words for kind, words in _WORDS.items() if isinstance(value, kind))
    return next(words, None) or brief(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is {shown(value)}")
    value.encode()  # raises for what is not UTF-8
    return value


def _group(value: Any) -> str:
    """Text of a group: 1 is '1', 1.0 too, true is 'true'."""
    if isinstance(value, (dict, list)):
        raise ValueError(f"is {shown(value)}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.encode(errors="replace").decode()


def _numbers(value: Any, kind: type, limits: tuple[float, float], is_list: bool) -> Any:
    items = value if is_list else [value]
    if not isinstance(items, list):
        raise ValueError(f"is {shown(value)}")
    for place, item in enumerate(items):
        is_number = isinstance(item, (int, float)) and limits[0] <= item <= limits[1]
        if not is_number or kind(item) != item:
            raise ValueError(f"has {shown(item)} at {place}" if is_list else f"is {shown(item)}")
    return [*map(kind, items)] if is_list else kind(value)


def numbers(
    dtype: str, reason: str, limits: tuple[float, float] | None = None, *, is_list: bool = True
) -> Kind:
    """A number of a row, or a number of each token. dtype: of numpy. limits: by default its own."""
    is_whole = not dtype.startswith("float")
    holds: Any = np.iinfo(dtype) if is_whole else np.finfo(dtype)
    least, most = limits or (holds.min, holds.max)
    types: Any = (pa.int64(), pa.bool_()) if is_whole else (pa.float64(),)
    of: Any = pa.from_numpy_dtype(np.dtype(dtype))
    ending = f"number{'s' * is_list}" + (f" from {least:,} to {most:,}" if is_whole else "")
    value = f"{'a list of' if is_list else 'a'} {'whole' if is_whole else 'finite'} {ending}"
    read = partial(_numbers, kind=int if is_whole else float, limits=(least, most), is_list=is_list)
    if is_list:
        of, types = pa.list_(of), tuple(map(pa.list_, types))
    return Kind(read, of, value, reason, types, (least, most), is_needed=True)


TEXT = Kind(_text, pa.large_string(), "text", "not_text", (pa.string(),), is_needed=True)
GROUP = Kind(
    _group,
    pa.large_string(),
    "text, a number, true or false",
    "bad_group",
    (pa.large_string(), pa.int64(), pa.bool_()),  # as float64, near whole numbers are one
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)
NESTED = Kind(lambda value: _ENCODER.encode(value).encode(), pa.large_binary())
"""Values of any type: as they are, or as JSON text where rows are JSON."""
ANY = Kind(lambda value: value)
"""Values as they are."""


def raw_of(
    found: Mapping[str, Any], count: int, columns: Columns, names: Sequence[str], problems: Problems
) -> Raw:
    """`count` rows. found: by column, an array or a list of values. names, problems: see `Raw`."""
    none = [None] * count
    table = {n: _typed(found.get(n, none), n, kind, problems) for n, kind in columns.items()}
    return Raw(pa.table(table), problems, names)


def raws(rows: Iterable[Row], columns: Columns, names: Sequence[str] = ()) -> Iterator[Raw]:
    """Tables of rows that are parsed already. names: by default those of the first row."""
    rows = iter(rows)
    while taken := list(itertools.islice(rows, _ROWS)):
        problems = {row: each for row, each in enumerate(taken) if isinstance(each, Problem)}
        parsed = [{} if isinstance(each, Problem) else each for each in taken]
        found = {name: [values.get(name) for values in parsed] for name in columns}
        known = names or [*next(filter(None, parsed), {})]
        yield raw_of(found, len(taken), columns, known, problems)


def _typed(column: Any, name: str, kind: Kind, problems: Problems) -> Any:
    """A column as its kind has it; a row with another value is null, and has a problem."""
    array = one_array(column)
    if not isinstance(array, list) and kind.json:
        cast = _cast(array, kind)
        array = _values(array, kind) if cast is None else cast
    if isinstance(array, list):
        array = _one_by_one(array, name, kind, problems)
    if kind.is_needed and array.null_count:
        for row in np.flatnonzero(array.is_null()).tolist():
            problems.setdefault(row, Problem("null", f"the row has no {name!r}"))
    return array


def one_array(column: Any) -> Any:
    """A column as one array; that of one chunk is not copied."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return chunks[0] if len(chunks) == 1 else column.combine_chunks()


def _cast(array: Any, kind: Kind) -> Any:
    """The array in the type of a kind; None if a value is of another, or outside of the limits."""
    if _family(array.type) != _family(kind.type):
        return None
    try:
        made = array.cast(kind.type)
        made.validate(full=True)  # of UTF-8 too
    except pa.ArrowException:
        return None
    return made if kind.limits is None or _are_within(made, *kind.limits) else None


def _values(array: Any, kind: Kind) -> list[Any]:
    """Values of an array; its type in place of those that no value of the kind can be."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if str(array.type) in _STRINGS:
        texts = array.cast(pa.large_binary()).to_pylist()
        return [None if text is None else text.decode(errors="surrogateescape") for text in texts]
    if _family(array.type) == _family(kind.type) or kind is GROUP:
        return array.to_pylist()  # type: ignore[no-any-return]
    return [array.type if is_valid else None for is_valid in array.is_valid().to_pylist()]


def _family(kind: Any) -> tuple[bool, str]:
    """If values of a type are lists, and what they are, or hold."""
    items = getattr(kind, "value_type", kind)
    name = "text" if str(items) in _STRINGS else "number" if is_number(items) else str(items)
    return items is not kind and not pa.types.is_dictionary(kind), name


def is_number(kind: pa.DataType) -> bool:
    """True for whole numbers, floats, true and false."""
    return kind == pa.bool_() or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _are_within(array: Any, least: float, most: float) -> bool:
    """True if no number is missing in a list, or outside of the limits."""
    numbers = array.flatten() if pa.types.is_list(array.type) else array.drop_null()
    values = np.full(1, np.nan) if numbers.null_count else numpy_values(numbers)
    return bool(((values >= least) & (values <= most)).all())


def _one_by_one(values: Sequence[Any], name: str, kind: Kind, problems: Problems) -> Any:
    made = list[Any]()
    for row, value in enumerate(values):
        made.append(None)
        try:
            made[row] = None if value is None else kind.read(value)
        except UnicodeEncodeError:
            problems.setdefault(row, Problem("bad_utf8", f"{name!r} is not UTF-8"))
        except ValueError as error:
            what = f"{name!r} {error}, expected {kind.value}"
            problems.setdefault(row, Problem(kind.reason, what))
    try:
        return pa.array(made, kind.type)
    except (pa.ArrowException, OverflowError, ValueError):
        return pa.array([ascii(value) for value in made])  # of several types, or of no type
