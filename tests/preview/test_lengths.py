"""Every kind of input of `packprep plan`, and that a plan's figures are those of the build."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import build
from packprep.inspect.report_file import read_report
from packprep.preview.lengths import read_lengths, write_rate
from packprep.preview.stored_lengths import Lengths
from packprep.preview.sweep import sweep_configs
from packprep.support.errors import ConfigError, InputError
from packprep.support.progress import Silent
from tests.helpers import files
from tests.helpers.corpus import build_options, expected_ids, texts, tiny_tokenizer, write_jsonl

FIGURES = (
    "utilization",
    "packs",
    "bound",
    "gap",
    "gap_share",
    "bias",
    "straggler",
    "tokens_lost",
    "tokens_lost_share",
)


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """200 documents in two files, packs of 64, several windows."""
    files = {"a.jsonl": texts(150), "b.jsonl": texts(50, 1)}
    return build_options(tmp_path, files, output=tmp_path / "out", unit_size=3_000, window=15_000)


@contextmanager
def read(options: dict[str, Any], share: float = 1.0, **more: Any) -> Iterator[Lengths]:
    with read_lengths(files.config(**options | more), share, Silent()) as found:
        yield found


def lengths_of(found: Lengths) -> list[int]:
    return [length for window in found.windows for length in window.documents.length.tolist()]


def figures(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Figures of a plan, in the words of a report."""
    with read(options, **more) as found:
        [row] = sweep_configs(
            found.windows, [files.config(**options | more)], found.tokenizer, found.carried
        )
    return {name: getattr(row, name) for name in FIGURES}


def built(options: dict[str, Any]) -> dict[str, Any]:
    """The same of the build."""
    report = dict(read_report(options["output"]))
    return {name: report[name] for name in FIGURES}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"strategy": "wrapped"},
        {
            "strategy": "stream",
            "overflow": "truncate",
            "truncation_side": "left",
            "min_document_tokens": 5,
        },
        {"strategy": "greedy", "overflow": "drop", "order": "input", "max_document_tokens": 200},
        {"strategy": "balanced", "window": "1GB"},
        {"stride": 8, "continuation_bos": True, "seed": 3, "order": "balanced"},
        {"holdout": 0.3, "strategy": "optimal"},
        {"packs_multiple_of": 16, "holdout": 0.2},
        {"packs_multiple_of": 16, "remainder": "fill", "pad_segment_to_multiple": 8},
        {"max_segments_per_pack": 2, "limit": 120, "bos": "none"},
        {"max_tokens": 3_000},
        {"min_pack_tokens": 60, "strategy": "greedy", "pad_segment_to_multiple": 8},
        {"min_pack_tokens": 60, "packs_multiple_of": 16, "order": "balanced", "strategy": "greedy"},
    ],
    ids=lambda more: ", ".join(more) or "plain",
)
def test_a_plan_of_text_has_exactly_the_figures_of_the_build(
    corpus: dict[str, Any], more: dict[str, Any]
) -> None:
    foreseen = figures(corpus, **more)
    build(files.config(**corpus | more))
    assert foreseen == built(corpus)


def test_groups_are_kept_apart_as_in_the_build(corpus: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"text": text, "kind": f"k{number % 3}"} for number, text in enumerate(texts(120))]
    options = corpus | {
        "sources": [write_jsonl(tmp_path / "g.jsonl", rows)],
        "group_column": "kind",
    }
    foreseen = figures(options)
    build(files.config(**options))
    assert foreseen == built(corpus)
    assert figures(options | {"group_column": None}) != foreseen


def test_rows_of_ids_are_planned_as_they_are_built(corpus: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"ids": list(range(2, 2 + length % 90))} for length in range(0, 400, 7)]
    options = corpus | {
        "sources": [write_jsonl(tmp_path / "ids.jsonl", rows)],
        "input_ids_column": "ids",
    }
    foreseen = figures(options)
    build(files.config(**options))
    assert foreseen == built(corpus)
    with read(options, 0.5) as some:
        assert 0 < some.documents < len(rows)


def test_bytes_are_those_of_the_shards_but_for_the_padding_of_buffers(
    corpus: dict[str, Any],
) -> None:
    options = corpus | {"max_length": 256, "window": "1GB", "pad_segment_to_multiple": 8}
    with read(options) as found:
        [row] = sweep_configs(
            found.windows, [files.config(**options)], found.tokenizer, found.carried
        )
    build(files.config(**options))
    assert row.bytes <= read_report(corpus["output"])["bytes"] <= row.bytes + 200


def test_text_is_tokenized_and_nothing_is_left_behind(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with read(corpus) as found:
        expected = [
            len(ids) for ids in expected_ids(texts(150) + texts(50, 1), tiny_tokenizer(), 0, 1)
        ]
        assert sorted(lengths_of(found)) == sorted(expected)
        assert found.tokenize_seconds is not None
        assert found.tokenize_seconds > 0
        assert len(found.windows) > 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_token_store_is_filled_by_a_plan_used_by_a_build_and_planned_by_itself(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    foreseen = figures(corpus, keep_tokens=store)
    [key] = store.iterdir()
    said: list[str] = []

    class Listening(Silent):
        def say(self, line: str) -> None:
            said.append(line)

    build(files.config(**corpus, keep_tokens=store), progress=Listening())
    assert said == [f"tokens reused from {key}: no text was read"]
    assert foreseen == built(corpus)
    assert figures(corpus, keep_tokens=store) == foreseen
    for place in (store, key):
        assert figures(corpus, sources=place) == foreseen
        with read(corpus, sources=place) as found:
            assert found.tokenize_seconds is None


def test_of_several_stores_one_must_be_named(corpus: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "store"
    for bos in ("none", "auto"):
        with read(corpus, keep_tokens=store, bos=bos):
            pass
    with (
        pytest.raises(InputError, match="has the tokens of 2 inputs; name one of"),
        read(corpus, sources=store),
    ):
        pass


def test_a_damaged_store_is_refused(corpus: dict[str, Any], tmp_path: Path) -> None:
    with read(corpus, keep_tokens=tmp_path / "store"):
        pass
    file = next((tmp_path / "store").rglob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-1])
    with (
        pytest.raises(InputError, match="not a complete token store"),
        read(corpus, sources=tmp_path / "store"),
    ):
        pass


@pytest.mark.parametrize(
    "more", [{}, {"holdout": 0.3}, {"stride": 8, "continuation_bos": True}], ids=str
)
def test_an_output_is_planned_again_with_its_own_figures(
    corpus: dict[str, Any], more: dict[str, Any]
) -> None:
    build(files.config(**corpus | more))
    again = figures(corpus | more, sources=corpus["output"], holdout=0.0)
    assert again == built(corpus)


def test_an_output_says_what_it_cannot_bring_back(corpus: dict[str, Any]) -> None:
    build(files.config(**corpus, overflow="truncate"))
    lost = read_report(corpus["output"])["tokens_lost"]
    with read(corpus, sources=corpus["output"]) as found:
        assert found.origin == f"{corpus['output']}, without the {lost:,} tokens it lost"
        assert found.longest == 64


def save(path: Path, values: Any) -> Path:
    np.save(path, values)
    return path


def test_an_array_of_lengths_is_one_window(tmp_path: Path) -> None:
    path = save(tmp_path / "l.npy", np.array([5, 6, 2, 3, 0], np.uint16))
    with read({"sources": path}) as found:
        assert lengths_of(found) == [5, 6, 2, 3, 0]
        assert (found.documents, found.longest, found.share, found.scale) == (5, 6, 1.0, 1.0)
    with read({"sources": path, "holdout": 0.5}) as found:
        assert [window.split for window in found.windows] == ["train", "validation"]
        assert sorted(lengths_of(found)) == [0, 2, 3, 5, 6]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 2), np.int64), r"holds int64 of shape \(2, 2\); expected integers"),
        (np.zeros(2), "holds float64 of shape"),
        (np.array([3, -1]), "has -1 tokens in row 1; expected 0 to 2"),
        (np.array([2**31]), "has 2147483648 tokens in row 0"),
        (np.array([{}], dtype=object), "cannot be read as an array"),
    ],
)
def test_what_are_no_lengths_is_refused(tmp_path: Path, values: Any, message: str) -> None:
    path = tmp_path / "l.npy"
    np.save(path, values, allow_pickle=True)
    with pytest.raises(InputError, match=message), read({"sources": path}):
        pass


def test_a_missing_array_is_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"gone\.npy cannot be read"),
        read({"sources": tmp_path / "gone.npy"}),
    ):
        pass


def test_groups_need_a_column(tmp_path: Path) -> None:
    path = save(tmp_path / "l.npy", np.array([5]))
    with (
        pytest.raises(ConfigError, match="group_column needs a column"),
        read({"sources": path, "group_column": "g"}),
    ):
        pass


def test_a_sample_of_text_is_of_documents_that_the_seed_draws(corpus: dict[str, Any]) -> None:
    with (
        read(corpus, 0.3) as some,
        read(corpus, 0.3) as same,
        read(corpus, 0.3, seed=1) as other,
        read(corpus) as all_,
    ):
        assert lengths_of(some) == lengths_of(same) != lengths_of(other)
        assert set(lengths_of(some)) <= set(lengths_of(all_))
        assert 30 <= some.documents <= 90
        assert some.scale * sum(lengths_of(some)) == pytest.approx(sum(lengths_of(all_)), rel=0.1)
        assert some.share == 0.3


def test_a_sample_of_lengths_is_scaled_by_tokens(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 99, 5000)
    with read({"sources": save(tmp_path / "l.npy", lengths)}, 0.2) as found:
        assert found.documents == pytest.approx(1000, rel=0.2)
        assert found.scale == lengths.sum() / sum(lengths_of(found))


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(tmp_path: Path, share: float) -> None:
    options = {"sources": save(tmp_path / "l.npy", np.array([1]))}
    with (
        pytest.raises(ConfigError, match="expected a share of more than 0 and at most"),
        read(options, share),
    ):
        pass


def test_a_sample_without_documents_asks_for_a_larger_one(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    sources = [corpus["sources"], save(tmp_path / "l.npy", np.array([1]))]
    for source in sources:
        with pytest.raises(InputError, match="larger --sample"), read(corpus, 1e-6, sources=source):
            pass


def test_a_store_is_for_all_documents(corpus: dict[str, Any], tmp_path: Path) -> None:
    options = corpus | {"keep_tokens": tmp_path / "store"}
    with (
        pytest.raises(ConfigError, match="omit --sample or --keep-tokens"),
        read(options, 0.5),
    ):
        pass


def test_the_rate_of_writing_is_measured_on_a_real_shard(tmp_path: Path) -> None:
    path = save(tmp_path / "l.npy", np.random.default_rng(0).integers(1, 500, 2000))
    with read({"sources": path, "max_length": 512}) as found:
        assert 1e5 < write_rate(found, files.config(sources=path, max_length=512)) < 1e11
