"""Plans of packs: the packs of shards, read from a token store."""

import pickle
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packprep.config.options import BuildConfig
from packprep.loaders import PackedLoader, PackedShards
from packprep.look.verify import verify
from packprep.run.build import build, pack, tokenize
from packprep.schemas.files import FormatError
from packprep.schemas.manifest import open_output, packs
from packprep.support.errors import ConfigError

TEXT: dict[str, Any] = {"tokenizer": "in/tiny", "max_length": 64}
LABELS: dict[str, Any] = {"ids": "ids,labels", "tokenizer": 1000, "max_length": 64}
CHATS: dict[str, Any] = {"tokenizer": "in/chat", "max_length": 200}
SMALL = {"shard_size": 20_000}
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "text": (["a"], TEXT | SMALL),
    "int32": (["a"], TEXT | {"token_type": "int32"}),
    "held out": (["a", "b"], TEXT | SMALL | {"holdout": "20%"}),
    "strides": (["a"], TEXT | {"stride": 8, "strategy": "stream", "order": "input"}),
    "windows": (["a", "b"], TEXT | {"window": 5000, "overflow": "truncate:left"}),
    "filler": (["a"], TEXT | {"multiple": "64:fill", "pad_to_multiple": 8}),
    "wrapped": (["a"], TEXT | {"strategy": "wrapped", "epoch": 1}),
    "bos of pieces": (["long"], TEXT | {"continuation_bos": True, "stride": 3}),
    "groups": (["rows"], TEXT | {"text": "text", "group": "group", "max_segments": 3}),
    "passes": (
        [{"path": "in/a.jsonl", "weight": 1}, {"path": "in/b.jsonl", "weight": 3, "max_epochs": 4}],
        TEXT,
    ),
    "labels": (["labels"], LABELS | {"carry": ["weights", "reward"], "stride": 4}),
    "balanced": (["labels"], LABELS | {"overflow": "truncate:balanced", "max_length": 16}),
    "chats": (["openai"], CHATS | {"messages": "messages", "multiple": 5}),
    "turns": (["thoughts"], CHATS | {"messages": "messages", "turns": "each"}),
    "pairs": (["pairs"], CHATS | {"pairs": "prompt,chosen,rejected", "holdout": 0.3}),
}


@pytest.fixture(autouse=True)
def inside(record_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").symlink_to(record_inputs)
    monkeypatch.chdir(tmp_path)


def same_packs(shards: str, plan: str) -> None:
    """Both outputs must have the same packs, by `packs` and by the loaders."""
    one, other = open_output(shards), open_output(plan)
    assert one.manifest.splits == other.manifest.splits
    for split in one.manifest.splits:
        for a, b in zip(packs(one, split), packs(other, split), strict=True):
            assert a.batch.equals(b.batch)
            assert (a.shard.path, a.shard.packs, a.first) == (b.shard.path, b.shard.packs, b.first)
        expected = PackedShards(shards, split=split)
        sides: dict[str, Any] = {"sides": "both"} if "pair_sides" in expected.columns else {}
        batches = [*PackedLoader(expected, 2, remainder="fill", **sides)]
        for mmap in (True, False):
            read = PackedShards(plan, split=split, mmap=mmap)
            assert read.pack_tokens().tolist() == expected.pack_tokens().tolist()
            assert [*map(described, read)] == [*map(described, expected)]
            loaded = PackedLoader(read, 2, remainder="fill", **sides)
            for whole, made in zip(batches, loaded, strict=True):
                for spec in fields(whole):
                    one_value, other_value = getattr(whole, spec.name), getattr(made, spec.name)
                    assert described(one_value) == described(other_value)


def described(pack: Any) -> Any:
    """A pack with types and values of its arrays."""
    if isinstance(pack, dict):
        return {name: described(values) for name, values in pack.items()}
    return (pack.dtype, pack.tolist()) if isinstance(pack, np.ndarray) else pack


@pytest.mark.parametrize("name", CASES)
def test_packs_of_a_plan_are_those_of_shards(name: str) -> None:
    sources, options = CASES[name]
    sources = [each if isinstance(each, dict) else f"in/{each}.jsonl" for each in sources]
    for output, columns in (("shards", None), ("plan", ["plan"])):
        build(
            BuildConfig(sources=sources, output=output, store="store", columns=columns, **options)
        )
    same_packs("shards", "plan")
    assert verify("plan") == []


def made(**options: Any) -> str:
    """A plan of packs with its tokens in `store`."""
    config: dict[str, Any] = {
        "sources": ["in/a.jsonl"],
        "output": "plan",
        "store": "store",
        "columns": ["plan"],
    }
    build(BuildConfig(**{**TEXT, **config, **options}))
    return str(config["output"])


def token_file(store: str = "store") -> Path:
    return next(Path(store).glob("*/*.arrow"))


def test_packs_of_several_stores_and_after_another_output() -> None:
    for name in "ab":
        tokenize(BuildConfig(sources=[f"in/{name}.jsonl"], store=name, tokenizer="in/tiny"))
    first: dict[str, Any] = {"sources": ["a", "b"], "max_length": 64, "max_tokens": 2000}
    for output, columns in (("shards", None), ("plan", ["plan"])):
        pack(BuildConfig(output=output, columns=columns, **first))
        then: dict[str, Any] = {"output": f"{output}-2", "max_tokens": 1000, "after": output}
        pack(BuildConfig(columns=columns, **{**first, **then}))
    same_packs("shards", "plan")
    same_packs("shards-2", "plan-2")
    several = PackedShards(["plan", "plan-2"])
    assert len(several) == len(PackedShards("plan")) + len(PackedShards("plan-2"))
    assert described(several[-1]) == described(pickle.loads(pickle.dumps(several))[-1])


def test_a_store_that_moved_is_found_beside_the_output_or_where_it_is_said_to_be(
    tmp_path: Path,
) -> None:
    fingerprint = PackedShards(made()).fingerprint
    Path("there").mkdir()
    for name in ("plan", "store"):
        Path(name).rename(f"there/{name}")
    assert verify("there/plan") == []
    Path("there/store").rename("moved")
    for store in ("moved", [token_file("moved").parent], ["in", "moved"]):
        assert verify("there/plan", store) == []
        assert PackedShards("there/plan", store=store).fingerprint == fingerprint
    command = "packprep tokenize -c plan/build.yaml -o store"
    for place in ("nowhere", "in"):
        with pytest.raises(FormatError, match=f"not in {tmp_path}/store/.* again: {command}"):
            PackedShards("there/plan", store=place)
    assert [each.kind for each in verify("there/plan")] == ["damaged file"]


def test_token_files_that_changed_are_refused_until_they_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    PackedShards(made())
    file = token_file()
    sound = file.read_bytes()
    at = len(sound) // 2
    changed = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
    for content, words in ((changed, "has changed"), (sound[:-8], "bytes, not"), (None, "missing")):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        with pytest.raises(FormatError, match=f"{words}.*tokenize -c plan/build.yaml -o store"):
            _ = [*PackedShards("plan")]
        with pytest.raises(FormatError, match=words):
            _ = [*packs(open_output("plan"))]
        assert [each.kind for each in verify("plan")] == ["damaged file"]
    tokenize(BuildConfig(sources=["in/a.jsonl"], store="store", tokenizer="in/tiny"))
    assert file.read_bytes() == sound
    assert verify("plan") == []
    monkeypatch.setitem(sys.modules, "xxhash", None)
    file.write_bytes(sound[:-8])
    with pytest.warns(UserWarning, match="sizes"), pytest.raises(FormatError, match="bytes, not"):
        PackedShards("plan")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_of_a_plan_is_a_format_error_or_points_into_documents(data: st.DataObject) -> None:
    if not Path("plan").exists():
        made(stride=3)
        Path("plan/data-00000-of-00001.arrow").rename("sound")
    content = bytearray(Path("sound").read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    Path("plan/data-00000-of-00001.arrow").write_bytes(content)
    assert [each.kind for each in verify("plan")] == ["damaged file"]
    try:
        read = [*PackedShards("plan", mmap=data.draw(st.booleans()))]
    except FormatError:
        return
    for each in read:
        ends = each["cu_seqlens"]
        assert 0 == ends[0] < ends[-1] == len(each["tokens"]) <= 64
        assert (np.diff(ends) > 0).all()
        assert (each["tokens"] < 400).all()


def test_a_plan_without_a_store_is_refused() -> None:
    for columns in (["plan"], ["plan", "hf"]):
        with pytest.raises(ConfigError, match=r"with store DIR|plan alone"):
            made(store=None, columns=columns)
