"""Readers: the file that people copy, and the loader."""

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.loaders import BatchShape, PackedBatch, PackedLoader, PackedShards, context_slice
from packprep.loaders.order import EpochOrder
from packprep.schemas.columns import STANDARD, Column
from packprep.schemas.files import FormatError
from tests.helpers import written
from tests.helpers.examples import share_of_examples

PACKS = Path(__file__).parents[1] / "loaders" / "packs.py"
ALONE = """
import pickle, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("packprep", "datasets", "torch", "pandas", "numba"):
            raise ImportError(name)

sys.meta_path.insert(0, Nothing())
sys.path.insert(0, sys.argv[1])
import packs

settings = pickle.loads(bytes.fromhex(sys.argv[2]))
opened = packs.Packs(*settings.pop("open"), views=settings.pop("views"))
made = [*opened] if "rank" not in settings else [*packs.rank_packs(opened, **settings)]
sys.stdout.buffer.write(pickle.dumps(made))
"""


def alone(folder: Path, *place: Any, views: bool = False, **settings: Any) -> Any:
    """What packs.py gives where nothing but numpy and pyarrow can be imported."""
    (folder / "packs.py").write_bytes(PACKS.read_bytes())
    given = pickle.dumps({"open": place, "views": views, **settings}).hex()
    command = [sys.executable, "-I", "-c", ALONE, str(folder), given]
    return pickle.loads(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of 300 documents of up to 90 ids, in 13 shards: `plain`, `hf`, and two splits."""
    folder = tmp_path_factory.mktemp("outputs")
    random = np.random.default_rng(7)
    rows = [{"ids": random.integers(0, 50257, random.integers(1, 90)).tolist()} for _ in range(300)]
    small = {"max_length": 128, "shard_size": 5000}
    written.build(folder / "plain", rows, **small)
    written.build(folder / "hf", rows, "--columns", "hf", **small)
    written.build(folder / "split", rows, "--holdout", "20%", "--columns", "document_ids", **small)
    return folder


@pytest.mark.parametrize(
    ("name", "split"), [("plain", None), ("hf", None), ("split", "train"), ("split", "validation")]
)
def test_the_file_that_people_copy_gives_the_packs_of_load_from_disk(
    made: Path, tmp_path: Path, name: str, split: str | None
) -> None:
    rows = datasets.load_from_disk(str(made / name / (split or ""))).with_format("numpy")
    packs, views = (
        alone(tmp_path, made / name, split),
        alone(tmp_path, made / name, split, views=True),
    )
    assert len(packs) == len(rows) > 10
    for pack, view, row in zip(packs, views, rows, strict=True):
        assert {array.dtype for array in (pack["tokens"], pack["position_ids"])} == {
            np.dtype("int64")
        }
        assert (view["tokens"].dtype, pack["cu_seqlens"].dtype) == (np.uint16, np.int32)
        ends = pack["cu_seqlens"]
        positions = np.concatenate([np.arange(length) for length in np.diff(ends)])
        assert pack["position_ids"].tolist() == view["position_ids"].tolist() == positions.tolist()
        expected = {key: np.asarray(value).tolist() for key, value in row.items()}
        if name == "hf":
            expected["tokens"] = expected.pop("input_ids")
            expected["cu_seqlens"] = [0, *np.cumsum(expected.pop("seq_lengths")).tolist()]
        expected["position_ids"] = positions.tolist()
        assert {key: value.tolist() for key, value in pack.items()} == expected


def test_the_file_that_people_copy_has_the_order_of_the_loader_and_resumes(
    made: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"seed": -3, "epoch": 2, "world_size": 2}
    for place in (0, 6):
        for rank in range(2):
            loader = PackedLoader(made / "plain", 1, seed=-3, rank=rank, world_size=2, prefetch=0)
            loader.set_epoch(2)
            loader.load_state_dict({**loader.state_dict(), "packs": place})
            packs = alone(tmp_path, made / "plain", place=place, rank=rank, **settings)
            assert (
                [after for after, _ in packs]
                == [loader.state_dict()["packs"] for _ in loader]
                == [*range(place + 2, place + 2 * len(packs) + 1, 2)]
            )
            loader.load_state_dict({**loader.state_dict(), "packs": place})
            for (_, pack), batch in zip(packs, loader, strict=True):
                for name in ("tokens", "position_ids", "cu_seqlens", "document_ids"):
                    values = getattr(batch, name)
                    assert (pack[name].dtype, pack[name].tolist()) == (
                        values.dtype,
                        values.tolist(),
                    )


def test_the_file_that_people_copy_names_what_it_cannot_open(made: Path, tmp_path: Path) -> None:
    for place, words in [
        ((made / "split",), "train, validation"),
        ((made / "split", "test"), "train, validation"),
    ]:
        with pytest.raises(subprocess.CalledProcessError) as error:
            alone(tmp_path, *place)
        assert words in error.value.stderr.decode()


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=4)
SHARDS = st.lists(st.lists(LENGTHS, min_size=1, max_size=5), min_size=1, max_size=9)


def numbered(shards: list[list[list[int]]]) -> list[list[dict[str, Any]]]:
    """Packs of documents of these lengths; the documents have numbers from 0 on."""
    packs, document = [], 0
    for shard in shards:
        packs.append(list[dict[str, Any]]())
        for lengths in shard:
            packs[-1].append(written.pack(*lengths, document=document))
            document += len(lengths)
    return packs


def stream(loaders: list[PackedLoader], steps: int | None = None) -> list[int]:
    """Numbers of the packs of all ranks in the order of the epoch, up to a step."""
    numbers, steps = list[int](), len(loaders[0]) if steps is None else steps
    each = [iter(loader) for loader in loaders]
    for _ in range(steps):
        batches = [next(batches) for batches in each]
        in_turn = [batch.pack_numbers.tolist() for batch in batches]
        if loaders[0].shape.max_tokens is None:
            in_turn = [[*packs] for packs in zip(*in_turn, strict=True)]
        numbers += [number for packs in in_turn for number in packs if number >= 0]
    return numbers


def assert_order(order: list[int], counts: list[int], window: int) -> None:
    """Expect stored order if window is 0, else packs of `window` shards at a time, mixed."""
    assert sorted(order) == [*range(sum(counts))]
    if window == 0:
        assert order == sorted(order)
        return
    shard_of = np.repeat(np.arange(len(counts)), counts)[order].tolist()
    while shard_of:
        mixed = {*[*dict.fromkeys(shard_of)][:window]}
        size = sum(counts[shard] for shard in mixed)
        assert {*shard_of[:size]} == mixed
        shard_of = shard_of[size:]


@settings(max_examples=share_of_examples(2))
@given(
    shards=SHARDS,
    seed=st.integers(-(2**63), 2**64),
    epoch=st.integers(0, 3),
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    window=st.integers(0, 5),
    prefetch=st.sampled_from([0, 2]),
    data=st.data(),
)
def test_each_pack_is_given_once_an_epoch_and_a_resume_at_any_world_size_gives_the_rest(
    shards: list[list[list[int]]],
    seed: int,
    epoch: int,
    worlds: tuple[int, int],
    sizes: tuple[int, int],
    window: int,
    prefetch: int,
    data: st.DataObject,
) -> None:
    by_tokens = data.draw(st.booleans())
    with TemporaryDirectory() as name:
        opened = PackedShards(written.write(Path(name, "out"), numbered(shards)))
        order = EpochOrder(opened, seed, epoch, window).every().tolist()
        assert_order(order, [*map(len, shards)], window)

        def loaders(which: int) -> list[PackedLoader]:
            size: dict[str, Any] = {"packs_per_batch": sizes[which]}
            if by_tokens:
                size = {"max_tokens": 64 * sizes[which]}
            made = [
                PackedLoader(
                    opened,
                    shape=BatchShape(**size),
                    seed=seed,
                    rank=rank,
                    world_size=worlds[which],
                    shuffle_window=window,
                    remainder="fill",
                    prefetch=prefetch,
                )
                for rank in range(worlds[which])
            ]
            for loader in made:
                loader.set_epoch(epoch)
            return made

        first = loaders(0)
        assert stream(first) == order
        steps = data.draw(st.integers(0, len(first[0])))
        given_before = stream(first, steps)
        states = [loader.state_dict() for loader in first]
        assert all(state == states[0] for state in states)
        assert states[0]["packs"] == len(given_before)
        second = loaders(1)
        for loader in second:
            loader.load_state_dict(states[0])
        assert given_before + stream(second) == order
        assert stream(second) == order


@given(
    shards=SHARDS,
    size=st.sampled_from(
        [
            {"packs_per_batch": 3},
            {"packs_per_batch": 2, "pad_multiple": 16},
            {"packs_per_batch": 2, "pad_to": 200},
            {"packs_per_batch": 2, "max_segments": 20},
            {"max_tokens": 100, "max_segments": 60},
            {"max_tokens": 130, "pad_multiple": 32},
        ]
    ),
    labels=st.sampled_from(["hf", "shifted", "none"]),
)
def test_a_batch_has_its_packs_and_its_shape(
    shards: list[list[list[int]]], size: dict[str, Any], labels: Any
) -> None:
    packs = numbered(shards)
    stored = [pack for shard in packs for pack in shard]
    multiple = size.get("pad_multiple", 1)
    with TemporaryDirectory() as name:
        opened = PackedShards(written.write(Path(name, "out"), packs))
        loader = PackedLoader(opened, shape=BatchShape(**size), labels=labels, remainder="fill")
        for batch in loader:
            check_batch(batch, stored, labels)
            assert len(batch) % multiple == 0
            if "pad_to" in size or "max_segments" in size:
                assert len(batch) == size.get("pad_to", size.get("max_tokens", 128))
            if "max_segments" in size:
                assert (batch.num_segments, batch.max_seqlen) == (size["max_segments"], 64)
            if "max_tokens" in size:
                assert batch.pack_boundaries[-1] <= size["max_tokens"]


def check_batch(batch: PackedBatch, stored: list[dict[str, Any]], labels: str) -> None:
    """Compare a batch with its packs, a segment at a time."""
    arrays = (batch.tokens, batch.position_ids, batch.cu_seqlens, batch.document_ids)
    assert [str(array.dtype) for array in arrays] == ["int64", "int64", "int32", "int64"]
    expected = list[tuple[int, list[int]]]()
    for number in batch.pack_numbers.tolist():
        pack = stored[number] if number >= 0 else written.pack(1, document=-1)
        tokens = pack["tokens"] if number >= 0 else np.zeros(1, np.int64)
        for segment, document in enumerate(pack["document_ids"].tolist()):
            begin, end = pack["cu_seqlens"][segment : segment + 2]
            expected.append((document, tokens[begin:end].tolist()))
    assert batch.cu_seqlens[0] == 0
    assert batch.cu_seqlens[-1] == len(batch)
    begins, ends = batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist()
    assert max(np.diff(batch.cu_seqlens)) <= batch.max_seqlen
    assert {*batch.pack_boundaries.tolist()} <= {*batch.cu_seqlens.tolist()}
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        document, tokens = (-1, [0] * (end - begin))
        if number < len(expected):
            document, tokens = expected[number]
        assert batch.document_ids[number] == document
        assert batch.tokens[begin:end].tolist() == tokens
        assert batch.position_ids[begin:end].tolist() == [*range(end - begin)]
        if labels != "none" and end > begin:
            trained = [] if document < 0 else tokens[1:]
            trained += [-100] * (end - begin - 1 - len(trained))
            trained = [-100, *trained] if labels == "hf" else [*trained, -100]
            assert batch.labels[begin:end].tolist() == trained
    assert (batch.labels is None) == (labels == "none")


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("name", ["plain", "hf"])
def test_shards_are_the_rows_of_load_from_disk(made: Path, name: str, mmap: bool) -> None:
    rows = datasets.load_from_disk(str(made / name)).with_format("numpy")
    shards = PackedShards(made / name, mmap=mmap, cache_size=1)
    assert len(shards) == len(rows)
    for pack, row in zip(shards, rows, strict=True):
        ends = np.asarray(row.get("cu_seqlens", np.append(0, np.cumsum(row.get("seq_lengths", 0)))))
        assert pack["cu_seqlens"].tolist() == ends.tolist()
        assert pack["tokens"].tolist() == row.get("tokens", row.get("input_ids")).tolist()
        assert pack["position_ids"].tolist() == row["position_ids"].tolist()
        assert pack["tokens"].dtype == np.uint16
    assert shards[-1]["tokens"].tolist() == shards[len(shards) - 1]["tokens"].tolist()
    with pytest.raises(IndexError):
        shards[len(shards)]


def test_record_batches_are_found_by_the_manifest(tmp_path: Path) -> None:
    rows = [{"ids": [*range(row, row + 4000)]} for row in range(400)]
    out = written.build(tmp_path / "out", rows, max_length=4096)
    assert len(PackedShards(out).outputs[0][0].manifest.files[0].batches) > 2
    for mmap in (True, False):
        shards = PackedShards(out, mmap=mmap)
        assert sorted(pack["tokens"][0] for pack in shards) == [*range(400)]


def test_outputs_of_a_list_follow_one_another(made: Path) -> None:
    places = [made / "plain", made / "split" / "train"]
    first, second = (PackedShards(place) for place in places[:1] * 2)
    both = PackedShards([made / "plain", made / "plain"])
    assert len(both) == len(first) + len(second)
    loader = PackedLoader(both, 1)
    numbers = [int(batch.pack_numbers[0]) for batch in loader]
    assert sorted(numbers[: len(first)]) == [*range(len(first))]
    assert sorted(numbers[len(first) :]) == [*range(len(first), len(both))]
    alone_ = PackedLoader(first, 1)
    assert numbers[: len(first)] == [int(batch.pack_numbers[0]) for batch in alone_]
    assert pickle.loads(pickle.dumps(both)).fingerprint == both.fingerprint != first.fingerprint
    with pytest.raises(ValueError, match="the same in all outputs"):
        PackedShards([places[0], made / "hf"])


PAIRS = (*written.COLUMNS, STANDARD["labels"], STANDARD["pair_ids"], STANDARD["pair_sides"])
WEIGHT = (
    Column(name="quality", kind="segment", dtype="float32"),
    Column(name="score", kind="token", dtype="int8"),
)


def paired(pair: int, chosen: int, rejected: int) -> dict[str, Any]:
    """A pack of the two sides of a pair, whose first token each is a prompt."""
    pack = written.pack(chosen, rejected, document=pair)
    labels = pack["tokens"].copy()
    labels[[0, chosen]] = -100
    scores = np.arange(chosen + rejected)
    return {
        **pack,
        "document_ids": [pair, pair],
        "labels": labels,
        "pair_ids": [pair, pair],
        "pair_sides": [0, 1],
        "quality": [pair, pair + 0.5],
        "score": scores,
    }


def test_sides_of_pairs_and_columns_are_read(tmp_path: Path) -> None:
    packs = [paired(7, 3, 2), paired(9, 4, 5), paired(4, 2, 2)]
    out = written.write(tmp_path / "out", [packs], (*PAIRS, *WEIGHT))
    with pytest.raises(ValueError, match="has preference pairs"):
        PackedLoader(out, 1)
    options: dict[str, Any] = {"columns": ["quality", "score"], "shuffle_window": 0}
    shape = BatchShape(packs_per_batch=2, max_segments=8)
    both = [*PackedLoader(out, shape=shape, sides="both", remainder="fill", **options)]
    assert both[0].extra["pair_ids"].tolist() == [7, 7, 9, 9, -1, -1, -1, -1]
    assert both[0].extra["pair_sides"].tolist() == [0, 1, 0, 1, -1, -1, -1, -1]
    assert both[0].extra["quality"].tolist() == [7, 7.5, 9, 9.5, 0, 0, 0, 0]
    assert both[0].extra["score"][:14].tolist() == [*range(5), *range(9)]
    assert both[1].pack_numbers.tolist() == [2, -1]
    (chosen,) = PackedLoader(out, 3, sides="chosen", **options)
    assert chosen.cu_seqlens.tolist() == [0, 3, 7, 9]
    assert chosen.tokens.tolist() == [7000, 7001, 7002, 9000, 9001, 9002, 9003, 4000, 4001]
    assert chosen.labels.tolist() == [-100, 7001, 7002, -100, 9001, 9002, 9003, -100, 4001]
    assert chosen.extra["score"].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1]
    assert chosen.position_ids.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("token", [0, 1, 1, 0, 1, 0, 1, 1]),
        ("segment", [0, 0.5, 0.5, 0, 1, 0, 0.5, 0.5]),
        ("document", [0, 1 / 3, 1 / 3, 0, 1 / 3, 0, 0.5, 0.5]),
        (2, [0, 1 / 3, 1 / 3, 0, 1 / 3, 0, 0.5, 0.5]),
    ],
)
def test_loss_weights_are_those_of_the_mode(tmp_path: Path, mode: Any, weights: Any) -> None:
    packs = [written.pack(3, 2, document=1) | {"document_ids": [1, 1]}, written.pack(3, document=2)]
    out = written.write(tmp_path / "out", [packs])
    (batch,) = PackedLoader(out, 2, loss_weights=mode, shuffle_window=0)
    assert batch.loss_weights.tolist() == pytest.approx(weights)
    parts = batch.micro_batches()
    assert [part.tokens.tolist() for part in parts] == [pack["tokens"].tolist() for pack in packs]
    assert np.concatenate([part.loss_weights for part in parts]).tolist() == pytest.approx(weights)


@given(data=st.data())
def test_damage_is_a_format_error_and_never_other_packs(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        packs = [written.pack(3, 2), written.pack(4, document=2), written.pack(1, 1, document=3)]
        out = written.write(Path(name, "out"), [packs])
        file = out / "data-00000-of-00001.arrow"
        sound = [{key: value.copy() for key, value in pack.items()} for pack in PackedShards(out)]
        content = bytearray(file.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
        mmap = data.draw(st.booleans())
        try:
            read = [*PackedShards(out, mmap=mmap)]
        except FormatError as error:
            assert "restore" in str(error) or "manifest" in str(error)
            return
        assert [pack["cu_seqlens"][-1] for pack in read] == [len(pack["tokens"]) for pack in read]
        assert len(read) == len(sound)
        file.write_bytes(content[:-8])
        with pytest.raises(FormatError, match="bytes"):
            PackedShards(out)
        file.unlink()
        with pytest.raises(FormatError, match="is missing"):
            PackedShards(out)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"packs_per_batch": 1, "rank": 2, "world_size": 2}, "rank is 2"),
        ({"packs_per_batch": 0}, "packs_per_batch is 0"),
        ({}, "pass one of them"),
        ({"packs_per_batch": 1000}, "too few"),
        ({"shape": BatchShape(max_tokens=100)}, "choose 128 or more"),
        ({"shape": BatchShape(packs_per_batch=2, pad_to=100)}, "choose 256 or more"),
        ({"shape": BatchShape(packs_per_batch=2, cp_size=2)}, "'shifted'"),
        (
            {
                "shape": BatchShape(packs_per_batch=2, cp_size=2, cp_layout="zigzag"),
                "labels": "shifted",
            },
            "--pad-to-multiple 4",
        ),
        ({"packs_per_batch": 1, "columns": ["nothing"]}, "is 'nothing'; expected one of tokens"),
        ({"packs_per_batch": 1, "sides": "both"}, "no preference pairs"),
        ({"packs_per_batch": 1, "labels": "other"}, "labels is 'other'"),
        ({"packs_per_batch": 1, "loss_weights": "other"}, "loss_weights is 'other'"),
        ({"packs_per_batch": 1, "loss_weights": "token", "labels": "none"}, "need labels"),
        ({"shape": BatchShape(packs_per_batch=1, max_segments=1)}, "raise it"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    made: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        _ = [*PackedLoader(made / "plain", **settings)]


def test_a_process_of_several_must_say_which_it_is(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = PackedLoader(made / "plain", 1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes"):
        PackedLoader(made / "plain", 1)
    with pytest.raises(ValueError, match="2 processes"):
        iter(loader)
    PackedLoader(made / "plain", 1, rank=0, world_size=1)


def test_a_state_of_other_shards_is_refused(made: Path) -> None:
    state = PackedLoader(made / "plain", 1).state_dict()
    with pytest.raises(FormatError, match="fingerprint"):
        PackedLoader(made / "hf", 1).load_state_dict(state)
    with pytest.raises(FormatError, match="keys"):
        PackedLoader(made / "hf", 1).load_state_dict({"packs": 3})


def test_batches_may_be_kept_and_an_iteration_may_be_dropped(made: Path) -> None:
    loader = PackedLoader(made / "plain", 1, prefetch=3)
    kept = [*loader]
    again = [batch.tokens.copy() for batch in PackedLoader(made / "plain", 1, prefetch=0)]
    assert [batch.tokens.tolist() for batch in kept] == [tokens.tolist() for tokens in again]
    assert loader[5].tokens.tolist() == again[5].tolist()
    for batch in loader:
        assert batch.tokens.tolist() == again[0].tolist()
        break
    assert loader.state_dict()["packs"] == 1
    loader.load_state_dict(loader.state_dict())
    assert len(loader) == len(again) - 1
    assert loader[0].tokens.tolist() == again[1].tolist()
    assert next(iter(pickle.loads(pickle.dumps(loader)))).tokens.tolist() == again[1].tolist()


def test_a_thread_makes_batches_for_a_slow_reader_and_ends_with_the_iteration(made: Path) -> None:
    def makers() -> int:
        return sum(thread.name.startswith("packprep-prefetch") for thread in threading.enumerate())

    expected = [batch.tokens.tolist() for batch in PackedLoader(made / "plain", 1, prefetch=0)]
    assert len(expected) > 64
    loader = PackedLoader(made / "plain", 1)
    found = []
    for batch in loader:
        found.append(batch.tokens.tolist())
        time.sleep(1e-4)
        assert loader.state_dict()["packs"] == len(found)
    assert found == expected
    batches = iter(loader)
    for _ in range(65):
        next(batches)
        time.sleep(1e-4)
    assert makers() == 1
    batches.close()  # type: ignore[attr-defined]
    for _ in range(100):
        time.sleep(0.01)
        if not makers():
            return
    raise AssertionError("the thread did not end")


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_slices_of_context_parallel_ranks_have_each_token_once(
    made: Path, tmp_path: Path, layout: Any
) -> None:
    rows = [{"ids": [*range(row * 100, row * 100 + 5 + row % 7)]} for row in range(30)]
    out = written.build(tmp_path / "out", rows, "--pad-to-multiple", "4", max_length=32)
    shape = BatchShape(packs_per_batch=3, cp_size=2, cp_layout=layout, max_segments=20)
    options: dict[str, Any] = {"labels": "shifted", "loss_weights": "document"}
    for batch in PackedLoader(out, shape=shape, remainder="fill", **options):
        slices = [context_slice(batch, rank, 2, layout) for rank in range(2)]
        tokens = [zip(part.tokens, part.labels, part.loss_weights, strict=True) for part in slices]
        both = zip(batch.tokens, batch.labels, batch.loss_weights, strict=True)
        assert sorted(each for part in tokens for each in part) == sorted(both)
        assert (batch.segment_lengths <= np.diff(batch.cu_seqlens)).all()
        assert len(slices[0]) == len(slices[1]) == 48


def test_an_iteration_goes_on_in_its_epoch_after_set_epoch(made: Path) -> None:
    loader = PackedLoader(made / "plain", 1)
    first = [batch.pack_numbers.tolist() for batch in loader]
    batches = iter(loader)
    loader.set_epoch(1)
    assert [batch.pack_numbers.tolist() for batch in batches] == first
    loader.set_epoch(2)
    assert [batch.pack_numbers.tolist() for batch in loader] != first
