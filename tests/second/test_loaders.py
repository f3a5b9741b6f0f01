"""Readers of the second edition: the file that people copy, and the loader."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from packprep.loaders.order import EpochOrder

from . import outputs

PACKS = Path(__file__).parents[2] / "packprep" / "next" / "loaders" / "packs.py"
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
    outputs.build(folder / "plain", rows, **small)
    outputs.build(folder / "hf", rows, "--columns", "hf", **small)
    outputs.build(folder / "split", rows, "--holdout", "20%", "--columns", "document_ids", **small)
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
    stored = alone(tmp_path, made / "plain")
    shards = datasets.load_from_disk(str(made / "plain")).cache_files
    counts = tuple(len(datasets.Dataset.from_file(file["filename"])) for file in shards)
    order = EpochOrder(counts, seed=-3, epoch=2, window=4).every().tolist()
    settings: dict[str, Any] = {"seed": -3, "epoch": 2}
    first = [alone(tmp_path, made / "plain", rank=r, world_size=2, **settings) for r in range(2)]
    place, last = first[0][9][0], len(order) - len(order) % 2
    assert [pack[0] for pack in first[1]] == [*range(2, last + 1, 2)]
    rest = [
        alone(tmp_path, made / "plain", rank=rank, world_size=3, place=place, **settings)
        for rank in range(3)
    ]
    given = [pack for pair in zip(*first, strict=True) for pack in pair][:place]
    given += [pack for three in zip(*rest, strict=True) for pack in three]
    assert len(order) - len(given) == (len(order) - place) % 3
    for (_, pack), number in zip(given, order, strict=False):
        assert pack.keys() == stored[number].keys()
        assert all(np.array_equal(pack[name], stored[number][name]) for name in pack)


def test_the_file_that_people_copy_names_what_it_cannot_open(made: Path, tmp_path: Path) -> None:
    for place, words in [
        ((made / "split",), "train, validation"),
        ((made / "split", "test"), "train, validation"),
    ]:
        with pytest.raises(subprocess.CalledProcessError) as error:
            alone(tmp_path, *place)
        assert words in error.value.stderr.decode()
