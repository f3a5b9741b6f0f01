import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packprep import BuildConfig
from packprep.sources import reading
from packprep.sources.reading import read_rows
from packprep.sources.resolve import resolve
from packprep.sources.row_text import as_rows as rows_as_they_are
from packprep.sources.row_text import as_text, text_columns
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import SHARED, rows_of, write_jsonl
from tests.helpers.files import PACK, config

TABLE = pa.table({"id": [1, 2, 3], "text": ["a", "b\nc", "日本"]})


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    settings = config(sources=[path], **options)
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    found = [
        row
        for source in resolve(settings, scratch)
        for table in read_rows(source, settings, scratch)
        for row in rows_of(table)
    ]
    assert not any(scratch.glob("*.arrow")), "a copy was left behind"
    assert not any(scratch.glob("*.parquet")), "a copy was left behind"
    return found


def texts_of(path: Path, **options: Any) -> list[str | None]:
    return [row["text"] for row in rows(path, **options)]


def write_parquet(path: Path) -> None:
    pq.write_table(TABLE, path)


def write_arrow_stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def write_arrow_file(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def write_rows(path: Path) -> None:
    write_jsonl(path, TABLE.to_pylist())


def write_array(path: Path) -> None:
    path.write_text(json.dumps(TABLE.to_pylist()))


def write_csv(path: Path) -> None:
    path.write_text('id,text\n1,a\n2,"b\nc"\n3,日本\n')


def write_tsv(path: Path) -> None:
    path.write_text('id\ttext\n1\ta\n2\t"b\nc"\n3\t日本\n')


WRITERS: list[tuple[str, Callable[[Path], None]]] = [
    ("a.jsonl", write_rows),
    ("a.json", write_array),
    ("a.csv", write_csv),
    ("a.tsv", write_tsv),
    ("a.parquet", write_parquet),
    ("stream.arrow", write_arrow_stream),
    ("file.arrow", write_arrow_file),
]


@pytest.mark.parametrize(("name", "write"), WRITERS)
@pytest.mark.parametrize("suffix", PACK)
def test_every_format_gives_the_same_rows(
    tmp_path: Path, name: str, write: Callable[[Path], None], suffix: str
) -> None:
    path = tmp_path / name
    write(path)
    if suffix:
        (tmp_path / f"{name}{suffix}").write_bytes(PACK[suffix](path.read_bytes()))
    assert rows(tmp_path / f"{name}{suffix}") == [
        {"text": text, "problem": None} for text in ("a", "b\nc", "日本")
    ]


@pytest.mark.parametrize("suffix", PACK)
def test_a_text_file_is_one_document_or_its_paragraphs_or_its_lines(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACK[suffix](b"one\ntwo\n\nthree"))
    assert texts_of(path) == ["one\ntwo\n\nthree"]
    assert texts_of(path, sample_by="paragraph") == ["one\ntwo", "three"]
    assert texts_of(path, sample_by="line") == ["one", "two", "", "three"]


@pytest.mark.parametrize(
    "name", ["[ab]*?.jsonl", "a b#c%20.csv", "日本.parquet", "a:b.txt", "{x}.arrow"]
)
def test_a_name_is_never_taken_for_a_pattern_or_an_address(tmp_path: Path, name: str) -> None:
    write = {
        "jsonl": write_rows,
        "csv": write_csv,
        "parquet": write_parquet,
        "arrow": write_arrow_file,
    }
    write.get(name.split(".")[-1], write_rows)(tmp_path / name)
    assert len(rows(tmp_path / name)) == (1 if name.endswith(".txt") else 3)


def test_a_saved_dataset_is_read_as_it_is(tmp_path: Path) -> None:
    datasets.Dataset(TABLE).select([2, 0]).save_to_disk(tmp_path / "saved")
    assert texts_of(tmp_path / "saved") == ["日本", "a"]


def test_a_hub_dataset_is_read_from_where_datasets_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.Dataset(TABLE).save_to_disk(tmp_path / "cached")
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *_, **__: datasets.load_from_disk(tmp_path / "cached")
    )
    monkeypatch.setattr("packprep.support.hub._unreachable", lambda *_: "")
    settings = config(sources="user/name")
    [source] = resolve(settings, tmp_path)
    assert [table["text"].to_pylist() for table in read_rows(source, settings, tmp_path)] == [
        ["a", "b\nc", "日本"]
    ]


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_a_missing_column_lists_those_there_are(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    with pytest.raises(InputError) as raised:
        rows(tmp_path / name, text_column="body")
    assert str(raised.value) == (
        f"{tmp_path / name} has no column 'body'; it has id, text: choose with --text-column or "
        "--text-template"
    )


def test_a_column_that_only_later_rows_have_is_not_missing(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": 1}, {"id": 2, "text": "b"}])
    assert rows(path) == [
        {"text": None, "problem": "null: the row has no 'text'"},
        {"text": "b", "problem": None},
    ]


def test_a_column_of_nulls_is_not_missing(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": None}, {"text": None}])
    assert {row["problem"] for row in rows(path)} == {"null: the row has no 'text'"}


def test_a_chat_file_names_itself_and_the_columns_it_has(tmp_path: Path) -> None:
    settings = config(sources=[SHARED / "text" / "sgd_chat.jsonl.gz"])
    [source] = resolve(settings, tmp_path)
    with pytest.raises(
        InputError, match=r"sgd_chat\.jsonl\.gz has no column 'text'; it has id, .*messages"
    ):
        next(read_rows(source, settings, tmp_path))


def test_a_template_makes_text_of_several_columns(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"t": "T", "b": "B"}, {"t": "T"}, {"t": "T", "b": 7}])
    assert rows(path, text_template="# {t}\n\n{b}{{}}{t}") == [
        {"text": "# T\n\nB{}T", "problem": None},
        {"text": None, "problem": "null: the row has no 't' and 'b'"},
        {"text": None, "problem": "not_text: 'b' is a number, expected text"},
    ]


@pytest.mark.parametrize("template", ["{t", "no column", "{}"])
def test_a_template_that_names_no_column_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="text_template"):
        text_columns(BuildConfig(text_template=template))


def test_a_column_of_another_type_is_a_finding_in_every_row() -> None:
    found = as_text(pa.table({"n": [1, None]}), ["n"], BuildConfig(text_column="n"))
    assert [row["problem"] for row in rows_of(found)] == [
        "not_text: 'n' is int64, expected text",
        "null: the row has no 'n'",
    ]


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_of_any_arrow_kind_is_text(kind: pa.DataType) -> None:
    column = pa.array(["a", None, "b"]).cast(kind)
    found = as_text(pa.table({"text": column}), ["text"], BuildConfig())
    assert found["text"].to_pylist() == ["a", None, "b"]


def test_bytes_that_are_not_utf8_in_a_text_column_are_a_finding_of_their_row() -> None:
    raw = pa.array([b"a", b"\xff", None], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    assert rows_of(as_text(pa.table({"text": column}), ["text"], BuildConfig())) == [
        {"text": "a", "problem": None},
        {"text": None, "problem": "bad_utf8: 'text' is not UTF-8"},
        {"text": None, "problem": "null: the row has no 'text'"},
    ]


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_the_group_column_comes_along_as_text(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    assert [row["group"] for row in rows(tmp_path / name, group_column="id")] == ["1", "2", "3"]


# Values of a group column of one type, and the groups that they are in every format.
GROUPS: list[tuple[list[Any], list[str | None]]] = [
    (["1", "true", "", "a b"], ["1", "true", "", "a b"]),
    ([1, 0, -7, 2**62, None], ["1", "0", "-7", str(2**62), None]),
    ([True, False, None], ["true", "false", None]),
    ([1.0, -2.0, 0.1, 2.0**62], ["1", "-2", "0.1", str(2**62)]),
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet", "a.arrow", "saved"])
@pytest.mark.parametrize(
    ("values", "groups"), GROUPS, ids=["text", "integers", "booleans", "floats"]
)
def test_a_value_is_the_same_group_in_every_format(
    tmp_path: Path, name: str, values: list[Any], groups: list[str | None]
) -> None:
    path = tmp_path / name
    table = pa.table({"text": ["x"] * len(values), "g": values})
    if name == "a.parquet":
        pq.write_table(table, path)
    elif name == "a.arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    elif name == "saved":
        datasets.Dataset(table).save_to_disk(path)
    elif name == "a.csv":  # has text only
        path.write_text("text,g\n" + "".join(f"x,{group or ''}\n" for group in groups))
        groups = [group or "" for group in groups]
    elif name == "a.json":
        path.write_text(json.dumps(table.to_pylist()))
    else:
        write_jsonl(path, table.to_pylist())
    assert [row["group"] for row in rows(path, group_column="g")] == groups
    assert {row["problem"] for row in rows(path, group_column="g")} == {None}


def test_groups_of_json_rows_are_compared_as_text(tmp_path: Path) -> None:
    values = [1, "1", 1.0, True, "true", False, None, 10**30, "é"]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x", "g": value} for value in values])
    found = [row["group"] for row in rows(path, group_column="g")]
    assert found == ["1", "1", "1", "true", "true", "false", None, str(10**30), "é"]


def test_a_group_that_is_a_list_is_a_finding_of_its_row(tmp_path: Path) -> None:
    groups: list[Any] = [1, [1], {"a": 1}]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x", "g": group} for group in groups])
    expected = "bad_group: 'g' is {}, expected text, a number, true or false"
    assert [row["problem"] for row in rows(path, group_column="g")] == [
        None,
        expected.format("a list"),
        expected.format("an object"),
    ]
    pq.write_table(pa.table({"text": ["x", "y"], "g": [[1], None]}), tmp_path / "a.parquet")
    found = rows(tmp_path / "a.parquet", group_column="g")
    assert [(row["text"], row["problem"]) for row in found] == [
        (None, expected.format("list<element: int64>")),
        ("y", None),
    ]


def test_a_column_may_be_text_and_group_at_once(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x"}, {"text": 1}])
    assert [(row["text"], row["problem"]) for row in rows(path, group_column="text")] == [
        ("x", None),
        (None, "not_text: 'text' is a number, expected text"),
    ]


def test_a_document_of_40_mb_is_a_row_like_any_other(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["before", "x" * 40_000_000, "after"])
    assert [len(text or "") for text in texts_of(path)] == [6, 40_000_000, 5]


@pytest.mark.parametrize("content", [b"\n\n", b"[]"])
def test_a_file_without_rows_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json holds no rows; expected at least one document"):
        rows(tmp_path / "a.json")


def test_lines_are_counted_from_1_with_blank_ones_and_rows_without(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n\n{"text": "b"}\n')
    [source] = resolve(config(sources=[path]), tmp_path)
    assert [source.line_of_row(row) for row in (0, 1)] == [1, 4]
    write_array(tmp_path / "b.json")
    [source] = resolve(config(sources=[tmp_path / "b.json"]), tmp_path)
    assert source.line_of_row(2) is None


def test_nothing_is_written_into_the_cache_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in (
        "HF_DATASETS_CACHE",
        "HF_MODULES_CACHE",
        "DOWNLOADED_DATASETS_PATH",
        "EXTRACTED_DATASETS_PATH",
    ):
        monkeypatch.setattr(datasets.config, name, home)
    for name, write in WRITERS:
        write(tmp_path / name)
        assert len(rows(tmp_path / name)) == 3
    assert list(home.iterdir()) == []


def test_rows_before_the_first_one_are_not_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(10)))
    rendered: list[int] = []

    def counted(table: pa.Table, *arguments: Any, **options: Any) -> pa.Table:
        rendered.append(len(table))
        return rows_as_they_are(table, *arguments, **options)

    monkeypatch.setattr(reading, "as_rows", counted)
    settings = config(sources=[path])
    (source,) = resolve(settings, tmp_path)
    tables = list(read_rows(source, settings, tmp_path, first=7))
    assert [text for table in tables for text in table["text"].to_pylist()] == ["7", "8", "9"]
    assert rendered == [3]
