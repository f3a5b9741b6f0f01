import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk

from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import FormatError, RemoteOutput, read_manifest
from tests.helpers.tiny_shards import row_of, write_output


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve shards of three packs."""
    rows = [row_of(3 * number, 9, 1 + number % 9, 12) for number in range(36)]
    shards = [rows[first : first + 3] for first in range(0, 36, 3)]
    path = tmp_path_factory.mktemp("build") / "out"
    write_output(path, {"train": shards}, max_length=64, vocab_size=200)
    return path


@pytest.fixture
def url(store: Any, output: Path, bucket: str) -> str:
    """The build, copied to a bucket of its own."""
    store.put(f"{output}/", f"{bucket}/packed/", recursive=True)
    return f"{bucket}/packed"


def tokens_of(shards: PackedShards) -> list[list[int]]:
    return [pack.tokens.tolist() for pack in shards]


def test_packs_of_a_url_are_those_of_the_disk(url: str, output: Path, tmp_path: Path) -> None:
    remote, local = PackedShards(url, cache_dir=tmp_path), PackedShards(output)
    assert len(remote.plan(0).packs_per_shard) > 5
    assert tokens_of(remote) == tokens_of(local)
    for name in ("fingerprint", "max_length", "report"):
        assert getattr(remote, name) == getattr(local, name)
    assert repr(remote).startswith(f"PackedShards({url!r}, split='train'")
    assert [*load_from_disk(url)["tokens"]] == tokens_of(local)  # datasets opens it too


def test_a_shard_is_fetched_when_it_is_first_needed_and_once(
    url: str, output: Path, tmp_path: Path, store: Any
) -> None:
    shards = PackedShards(url, cache_dir=tmp_path)
    assert list(tmp_path.rglob("*.arrow")) == []
    last = shards[-1].tokens.tolist()
    assert [path.name for path in tmp_path.rglob("*.arrow")] == [shards.files[-1].name]
    store.rm(url.partition("://")[2] + "/" + shards.files[-1].name)
    again, local = PackedShards(url, cache_dir=tmp_path), PackedShards(output)
    assert again[-1].tokens.tolist() == last == local[-1].tokens.tolist()


def test_a_cache_with_a_size_holds_no_more_and_gives_the_same(
    url: str, output: Path, tmp_path: Path
) -> None:
    shards = PackedShards(url, cache_dir=tmp_path, cache_size=8_000)
    held = []
    for pack, expected in zip(shards, PackedShards(output), strict=True):
        assert pack.tokens.tolist() == expected.tokens.tolist()
        held.append(sum(path.stat().st_size for path in tmp_path.rglob("*.arrow")))
    assert 0 < max(held) <= 8_000 < sum(entry.bytes for entry in read_manifest(output).files)
    assert shards[0].tokens.tolist() == PackedShards(output)[0].tokens.tolist()


def test_threads_may_read_through_a_cache_that_holds_one_shard(
    url: str, output: Path, tmp_path: Path
) -> None:
    shards, expected = PackedShards(url, cache_dir=tmp_path, cache_size=1), PackedShards(output)
    places = [range(len(expected)), range(len(expected))[::-1]] * 2
    with ThreadPoolExecutor(len(places)) as threads:
        read = threads.map(lambda packs: [shards[pack].tokens.tolist() for pack in packs], places)
        for packs, tokens in zip(places, read, strict=True):
            assert tokens == [expected[pack].tokens.tolist() for pack in packs]


def test_without_a_cache_dir_shards_are_kept_where_the_system_keeps_caches(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    PackedShards(url)[0]
    (kept,) = (tmp_path / "packprep").iterdir()
    assert kept.name == read_manifest(RemoteOutput(url)).sha256[:16]
    assert list(kept.iterdir())


def test_a_shard_that_was_changed_in_the_store_is_never_used(
    url: str, tmp_path: Path, store: Any
) -> None:
    name = url.partition("://")[2] + "/data-00000-of-"
    [path] = [found for found in store.find(url) if found.startswith(name)]
    content = bytearray(store.cat_file(path))
    content[len(content) // 2] ^= 1
    store.pipe_file(path, bytes(content))
    with pytest.raises(
        FormatError, match=r"data-00000-of-\d+\.arrow has \d+ bytes of sha256 \w+; "
    ):
        PackedShards(url, cache_dir=tmp_path)[0]
    assert list(tmp_path.rglob("*.arrow*")) == []


def test_what_is_missing_is_named(url: str, tmp_path: Path, store: Any) -> None:
    with pytest.raises(FormatError, match=r"nothing/manifest\.json does not exist; expected the"):
        PackedShards(f"{url}/nothing", cache_dir=tmp_path)
    store.rm(next(path for path in store.find(url) if path.endswith(".arrow")))
    with pytest.raises(FormatError, match="is missing; the manifest lists it with"):
        tokens_of(PackedShards(url, cache_dir=tmp_path))


def test_verify_checks_every_file_and_finds_a_surplus_one(
    url: str, tmp_path: Path, store: Any
) -> None:
    assert len(PackedShards(url, cache_dir=tmp_path, verify=True)) > 0
    store.pipe_file(url.partition("://")[2] + "/note.txt", b"hello")
    with pytest.raises(FormatError, match=r"packed/note\.txt is not in the manifest"):
        PackedShards(url, cache_dir=tmp_path, verify=True)


def test_forked_workers_of_a_dataloader_read_a_url_too(
    url: str, output: Path, tmp_path: Path
) -> None:
    data = pytest.importorskip("torch.utils.data")
    shards = PackedShards(url, cache_dir=tmp_path, cache_size=6_000)
    loader = PackedLoader(pickle.loads(pickle.dumps(shards)), 3)
    expected = [batch.tokens.tolist() for batch in PackedLoader(PackedShards(output), 3)]
    assert loader[0].tokens.tolist() == expected[0]
    forked = {"num_workers": 1, "multiprocessing_context": "fork"}
    batches = data.DataLoader(loader, batch_size=None, **forked)
    assert [batch.tokens.tolist() for batch in batches] == expected
