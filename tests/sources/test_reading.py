import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packprep import build
from packprep.config.carried import RESERVED
from packprep.loaders import PackedShards
from packprep.sources.formats.row_plan import row_plan
from packprep.sources.row_text import as_rows
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import resolved, rows_in, rows_of, save_tokenizer, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.examples import long_but
from tests.helpers.files import PACK, config

TABLE = pa.table({"id": [1, 2, 3], "text": ["a", "b\nc", "日本"]})


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    settings = config(sources=[path], **options)
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    found = [
        row
        for source in resolved(settings, scratch)
        for table in rows_in(source, settings, scratch)
        for row in rows_of(table)
    ]
    assert not [*scratch.glob("*.arrow"), *scratch.glob("*.parquet")], "a copy was left behind"
    return found


def column(name: str, path: Path, **options: Any) -> list[str | None]:
    return [row[name] for row in rows(path, **options)]


def texts_of(path: Path, **options: Any) -> list[str | None]:
    return column("text", path, **options)


def write_ipc(path: Path, table: pa.Table) -> None:
    new = pa.ipc.new_stream if path.stem == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table)


def write_rows(path: Path, table: pa.Table) -> None:
    write_jsonl(path, table.to_pylist())


def write_array(path: Path, table: pa.Table) -> None:
    path.write_text(json.dumps(table.to_pylist()))


def write_cells(path: Path, table: pa.Table) -> None:
    """Cells of groups are texts: 1 is "1", true is "true", null is empty."""
    between = "\t" if path.suffix == ".tsv" else ","
    lines = [table.column_names, *(row.values() for row in table.to_pylist())]
    cells = [[_cell(value) for value in line] for line in lines]
    path.write_text("".join(between.join(line) + "\n" for line in cells))


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else str(value)
    return "" if value is None else f'"{value}"' if "\n" in str(value) else str(value)


def write_saved(path: Path, table: pa.Table) -> None:
    datasets.Dataset(table).save_to_disk(path)


WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    "a.jsonl": write_rows,
    "a.json": write_array,
    "a.csv": write_cells,
    "a.tsv": write_cells,
    "a.parquet": lambda path, table: pq.write_table(table, path),
    "stream.arrow": write_ipc,
    "file.arrow": write_ipc,
    "saved": write_saved,
}


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "saved"])
@pytest.mark.parametrize("suffix", PACK)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / name
    WRITERS[name](path, TABLE)
    if suffix:  # as two gzip members or zstd frames
        content, pack = path.read_bytes(), PACK[suffix]
        (tmp_path / f"{name}{suffix}").write_bytes(pack(content[:9]) + pack(content[9:]))
    assert rows(tmp_path / f"{name}{suffix}") == [
        {"text": text, "problem": None} for text in ("a", "b\nc", "日本")
    ]


@pytest.mark.parametrize("name", WRITERS)
def test_a_column_may_have_any_name_that_packprep_uses_itself(tmp_path: Path, name: str) -> None:
    table = pa.table({each: [f"{each} 1", f"{each} 2"] for each in sorted(RESERVED)})
    WRITERS[name](tmp_path / name, table)
    for each in table.column_names:
        texts = [f"{each} 1", f"{each} 2"]
        found = rows(tmp_path / name, text_column=each, group_column=each)
        assert found == [{"text": text, "problem": None, "group": text} for text in texts]


def test_a_saved_dataset_is_read_as_it_is(tmp_path: Path) -> None:
    datasets.Dataset(TABLE).select([2, 0]).save_to_disk(tmp_path / "saved")
    assert texts_of(tmp_path / "saved") == ["日本", "a"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_missing_column_lists_those_there_are_and_a_group_comes_along_as_text(
    tmp_path: Path, name: str
) -> None:
    WRITERS[name](tmp_path / name, TABLE)
    words = ("has no column 'body'; it has id, text", "--text-column or --text-template")
    with refused(InputError, str(tmp_path / name), *words):
        rows(tmp_path / name, text_column="body")
    assert column("group", tmp_path / name, group_column="id") == ["1", "2", "3"]


def test_a_column_of_nulls_or_of_later_rows_is_not_missing(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": 1}, {"id": 2, "text": "b"}, {"text": None}])
    problem = "null: the row has no 'text'"
    assert column("problem", path) == [problem, None, problem]
    assert texts_of(path) == [None, "b", None]
    path = write_jsonl(tmp_path / "b.jsonl", [{"text": None}] * 2)
    assert column("problem", path) == [problem] * 2


def test_a_template_makes_text_of_several_columns(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"t": "T", "b": "B"}, {"t": "T"}, {"t": "T", "b": 7}])
    assert rows(path, text_template="# {t}\n\n{b}{{}}{t}") == [
        {"text": "# T\n\nB{}T", "problem": None},
        {"text": None, "problem": "null: the row has no 't' and 'b'"},
        {"text": None, "problem": "not_text: 'b' is a number, expected text"},
    ]


@pytest.mark.parametrize("template", ["{t", "no column", "{}"])
def test_a_template_that_names_no_column_is_refused(template: str) -> None:
    with refused(ConfigError, "text_template"):
        row_plan(config(text_template=template).parsing)


BYTES = pa.array([b"a", b"\xff", None], pa.binary()).buffers()
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 3, BYTES)
NO_TEXT, INT32 = "null: the row has no 't'", pa.int32()


@pytest.mark.parametrize(
    ("values", "texts", "problems"),
    [
        *(
            (pa.array(["a", None]).cast(kind), ["a", None], [None, NO_TEXT])
            for kind in (pa.large_string(), pa.string_view(), pa.dictionary(INT32, pa.string()))
        ),
        (NOT_UTF8, ["a", None, None], [None, "bad_utf8: 't' is not UTF-8", NO_TEXT]),
        (pa.array([1, None]), [None, None], ["not_text: 't' is int64, expected text", NO_TEXT]),
    ],
)
def test_text_of_any_arrow_kind_is_text_and_another_type_a_problem_of_every_row(
    values: "pa.Array[Any]", texts: list[str | None], problems: list[str | None]
) -> None:
    found = rows_of(as_rows(pa.table({"t": values}), row_plan(config(text_column="t").parsing)))
    assert [(row["text"], row["problem"]) for row in found] == list(
        zip(texts, problems, strict=True)
    )


@pytest.mark.parametrize("name", long_but(["a.jsonl"], WRITERS))
def test_text_that_spells_a_special_token_stays_text_unless_asked(
    tmp_path: Path, name: str
) -> None:
    WRITERS[name](tmp_path / name, pa.table({"text": ["a</s>b"]}))
    options: dict[str, Any] = {"tokenizer": save_tokenizer(tmp_path / "tokenizer")}
    for parsed in (False, True):
        output = tmp_path / f"parsed {parsed}"
        options |= {"output": output, "parse_special_tokens": parsed}
        build(config(sources=tmp_path / name, **options))
        [pack] = PackedShards(output)
        assert pack.tokens.tolist().count(1) == 1 + parsed


# Values of a group column of one type, and the groups that they are in every format.
GROUPS: dict[str, tuple[list[Any], list[str | None]]] = {
    "text": (["1", "true", "", "a b"], ["1", "true", "", "a b"]),
    "integers": ([1, 0, -7, 2**62, None], ["1", "0", "-7", str(2**62), None]),
    "booleans": ([True, False, None], ["true", "false", None]),
    "floats": ([1.0, -2.0, 0.1, 2.0**62], ["1", "-2", "0.1", str(2**62)]),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("kind", GROUPS)
def test_a_value_is_the_same_group_in_every_format(tmp_path: Path, name: str, kind: str) -> None:
    values, groups = GROUPS[kind]
    WRITERS[name](tmp_path / name, pa.table({"text": ["x"] * len(values), "g": values}))
    if WRITERS[name] is write_cells:  # which have text only
        groups = [group or "" for group in groups]
    assert column("group", tmp_path / name, group_column="g") == groups
    assert set(column("problem", tmp_path / name, group_column="g")) == {None}


def test_groups_of_json_rows_are_compared_as_text(tmp_path: Path) -> None:
    values = [1, "1", 1.0, True, "true", False, None, 10**30, "é"]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x", "g": value} for value in values])
    expected = ["1", "1", "1", "true", "true", "false", None, str(10**30), "é"]
    assert column("group", path, group_column="g") == expected


def test_a_group_that_is_a_list_is_a_problem_of_its_row(tmp_path: Path) -> None:
    groups: list[Any] = [1, [1], {"a": 1}]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x", "g": group} for group in groups])
    expected = "bad_group: 'g' is {}, expected text, a number, true or false"
    problems = [None, expected.format("a list"), expected.format("an object")]
    assert column("problem", path, group_column="g") == problems
    pq.write_table(pa.table({"text": ["x", "y"], "g": [[1], None]}), tmp_path / "a.parquet")
    problems = [expected.format("list<element: int64>"), None]
    assert column("problem", tmp_path / "a.parquet", group_column="g") == problems
    assert texts_of(tmp_path / "a.parquet", group_column="g") == [None, "y"]


@pytest.mark.parametrize("content", [b"\n\n", b"[]"])
def test_a_file_without_rows_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with refused(InputError, "a.json holds no rows"):
        rows(tmp_path / "a.json")


def test_lines_are_counted_from_1_with_blank_ones_and_rows_without(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n\n{"text": "b"}\n')
    write_array(tmp_path / "b.json", TABLE)
    lines, array = resolved(config(sources=[tmp_path / "a.jsonl", tmp_path / "b.json"]), tmp_path)
    assert [lines.line_of_row(row) for row in (0, 1)] == [1, 4]
    assert array.line_of_row(2) is None
