"""Every kind of input of `packprep plan`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import build, pack, tokenize
from packprep.inspect.report_file import read_report
from packprep.preview.lengths import read_lengths
from packprep.preview.stored_lengths import Lengths, options_to_plan, store_tokens
from packprep.preview.sweep import sweep
from packprep.schemas import read_manifest
from packprep.support.errors import ConfigError, InputError, PackprepError
from packprep.support.progress import Silent
from tests.helpers import files
from tests.helpers.corpus import RecordedProgress, build_options, texts
from tests.helpers.errors import refused
from tests.helpers.zoo import Zoo

FIGURES = "utilization packs bound gap gap_share bias straggler tokens_lost tokens_lost_share"


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """200 documents in two files, packs of 64, several windows."""
    files = {"a.jsonl": texts(150), "b.jsonl": texts(50, 1)}
    return build_options(tmp_path, files, output=tmp_path / "out", unit_size=3_000, window=15_000)


@contextmanager
def read(options: dict[str, Any], share: float = 1.0, **more: Any) -> Iterator[Lengths]:
    """Lengths for a plan with these options, as the command reads them."""
    every = options | more
    if (tokens := store_tokens(every["sources"])) is not None:
        every = options_to_plan(tokens, every)
    with read_lengths(files.config(**every), share, Silent(), tokens) as found:
        yield found


def lengths_of(found: Lengths) -> list[int]:
    return [length for window in found.windows for length in window.documents.length.tolist()]


def figures(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Figures of a plan, in the words of a report."""
    config = files.config(**options | more)
    with read(options, **more) as found:
        [row] = sweep(found, [config.pack_rules()], config.writing)
    return {name: row.figures[name] for name in FIGURES.split()}


def built(options: dict[str, Any]) -> dict[str, Any]:
    """The same of the build."""
    report = dict(read_report(Path(options["output"])))
    return {name: report[name] for name in FIGURES.split()}


@pytest.mark.parametrize("name", ["text", "split", "pairs", "uint16"])
def test_the_inputs_of_finished_outputs_are_planned_with_their_figures(zoo: Zoo, name: str) -> None:
    """And so are text and documents with a stride that come back from the output."""
    options = vars(zoo.config(name)) | {"output": str(zoo[name])}
    del options["given"]
    assert figures(options) == built(options)
    if name in ("text", "split"):
        assert figures(options, sources=str(zoo[name]), holdout=0.0) == built(options)


def test_a_token_store_is_filled_by_a_plan_used_by_a_build_and_planned_by_itself(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    foreseen = figures(corpus, keep_tokens=store)
    [key] = store.iterdir()
    progress = RecordedProgress()
    build(files.config(**corpus, keep_tokens=store), progress=progress)
    assert progress.lines == [f"tokens reused from {key}: no text was read"]
    assert foreseen == built(corpus)
    assert figures(corpus, keep_tokens=store) == foreseen
    for place in (store, key):
        assert figures(corpus, sources=str(place)) == foreseen
        with read(corpus, sources=str(place)) as found:
            assert found.tokenize_seconds is None
    packs: dict[str, Any] = {"max_length": 64, "window": 15_000}
    packed = pack([store], output=str(tmp_path / "packed"), **packs)
    assert packed.data == read_manifest(corpus["output"]).data


def test_stores_are_planned_as_pack_of_them_and_options_of_their_text_are_those_of_the_tokens(
    tmp_path: Path,
) -> None:
    columns = {"group_column": "topic", "carry": ("score:float32",)}
    stores = [str(tmp_path / name) for name in "ab"]
    for seed, store in enumerate(stores):
        rows = [{"text": t, "topic": f"{n % 3}", "score": n} for n, t in enumerate(texts(60, seed))]
        options = build_options(tmp_path, {f"{seed}.jsonl": rows}, unit_size=3_000, **columns)
        del options["max_length"]
        tokenize(files.config(**options | {"output": store}))
    packs: dict[str, Any] = {"max_length": 64, "window": 15_000, "output": str(tmp_path / "packed")}
    pack(stores, **packs)
    assert figures(packs, sources=stores) == built(packs)
    for changed in ({"group_column": None}, {"bos": "none"}, {"unit_size": 4_000}):
        [name] = changed
        with (
            refused(ConfigError, name, "packprep tokenize", "plan of a store"),
            read(packs, sources=stores, **changed),
        ):
            pass


def test_a_store_is_whole_of_one_tokenizer_and_for_all_documents(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    for bos in ("none", "auto"):
        with read(corpus, keep_tokens=store, bos=bos):
            pass
    with refused(ConfigError, "differ", "tokenize both alike"), read(corpus, sources=store):
        pass
    with (
        refused(ConfigError, "omit sample or keep_tokens"),
        read(corpus, 0.5, keep_tokens=store, bos="</s>"),
    ):
        pass
    file = next(Path(store).rglob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-1])
    with refused(InputError, file.name, "its receipt says"), read(corpus, sources=store):
        pass


def test_an_output_says_what_it_cannot_bring_back(corpus: dict[str, Any]) -> None:
    build(files.config(**corpus, overflow="truncate"))
    lost = read_report(corpus["output"])["tokens_lost"]
    with read(corpus, sources=corpus["output"]) as found:
        assert found.origin == f"{corpus['output']}, without the {lost:,} tokens it lost"
        assert found.longest == 64


NAN = float("nan")


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


FIVE = np.array([5])
REFUSALS: list[tuple[Any, dict[str, Any], float, str]] = [
    (np.zeros((2, 2), np.int64), {}, 1, r"holds int64 of shape \(2, 2\); expected integers"),
    (np.zeros(2), {}, 1, "holds float64 of shape"),
    (np.array([3, -1]), {}, 1, "has -1 tokens in row 1; expected 0 to 2"),
    (np.array([2**31]), {}, 1, "has 2147483648 tokens in row 0"),
    (np.array([{}], dtype=object), {}, 1, "cannot be read as an array"),
    (None, {}, 1, r"l\.npy cannot be read"),
    (FIVE, {"group_column": "g"}, 1, "group_column needs the rows"),
    (FIVE, {"limit": 3}, 1, "limit needs the rows"),
    *((FIVE, {}, share, "expected a share of more than 0") for share in (0, -1, 1.5, NAN)),
    (FIVE, {}, 1e-6, "larger --sample"),
]


@pytest.mark.parametrize(("values", "options", "share", "words"), REFUSALS, ids=str)
def test_what_are_no_lengths_or_no_share_of_them_is_refused(
    tmp_path: Path, values: Any, options: dict[str, Any], share: float, words: str
) -> None:
    path = tmp_path / "l.npy"
    if values is not None:
        np.save(path, values, allow_pickle=True)
    with pytest.raises(PackprepError, match=words), read({"sources": path} | options, share):
        pass


@pytest.mark.long
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
    with pytest.raises(PackprepError, match="larger --sample"), read(corpus, 1e-6):
        pass


def test_a_sample_of_lengths_is_scaled_by_tokens(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 99, 5000)
    with read({"sources": save(tmp_path / "l.npy", lengths)}, 0.2) as found:
        assert found.documents == pytest.approx(1000, rel=0.2)
        assert found.scale == lengths.sum() / sum(lengths_of(found))
