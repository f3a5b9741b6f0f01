"""Laws that every adapter keeps; a new adapter is tested here without being named."""

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedBatch, PackedLoader, PackedShards
from packprep.schemas import STANDARD_COLUMNS
from tests.helpers.adapters import EVERY, WITH_LABELS, model_calls, plain
from tests.helpers.tiny_shards import GOLDEN, PLAIN, RICH, Row, rich_row, row_of, write_output
from tests.helpers.torch_models import batch_of, documents, skip_without, tiny_llama
from tests.helpers.trees import tree_output

skip_without("torch", "transformers")

import torch  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from packprep import loaders  # noqa: E402
from packprep.loaders import to_llama_factory  # noqa: E402

LENGTHS = [37, 1, 50, 40]
CALLS = model_calls(PackedLoader(PackedShards(GOLDEN / "v1-example"), 1)[0])
CALLS["to_llama_factory, 4-D"] = lambda batch: to_llama_factory(batch, mask_dtype=torch.float32)

with_labels = pytest.mark.parametrize("adapter", WITH_LABELS.values(), ids=WITH_LABELS)
model_call = pytest.mark.parametrize("adapter", CALLS.values(), ids=CALLS)
Adapter = Callable[[Any], Any]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> PackedBatch:
    return batch_of(tmp_path_factory.mktemp("batch") / "out", LENGTHS).torch()


@model_call
def test_packed_gradients_equal_those_of_the_documents_alone(
    batch: PackedBatch, adapter: Adapter
) -> None:
    model = tiny_llama()
    packed = model(**adapter(batch)).loss * batch.num_items
    gradients = torch.autograd.grad(packed, [*model.parameters()])
    alone = [
        cross_entropy(
            model(input_ids=torch.tensor([text])).logits[0, :-1],
            torch.tensor(text[1:]),
            reduction="sum",
        )
        for text in documents(LENGTHS)
        if len(text) > 1
    ]
    expected = torch.autograd.grad(torch.stack(alone).sum(), [*model.parameters()])
    scale = max(float(gradient.abs().max()) for gradient in expected)
    for got, wanted in zip(gradients, expected, strict=True):
        assert float((got - wanted).abs().max()) / scale < 1e-5


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """A pack with documents, and one of filler alone."""
    path = tmp_path_factory.mktemp("filler") / "out"
    write_output(path, {"train": [[rich_row(0, 3, 4), rich_row(2)]]}, RICH, max_length=16)
    return PackedShards(path)


@model_call
def test_a_batch_of_filler_has_a_loss_of_zero_and_no_gradient(
    filler: PackedShards, adapter: Adapter
) -> None:
    model = tiny_llama()
    for trained, packs in zip((True, False), PackedLoader(filler, 1, shuffle=False), strict=True):
        fields = adapter(packs)
        assert ("num_items_in_batch" in fields) != trained
        model.zero_grad()
        loss = model(**fields).loss
        loss.backward()
        largest = max(float(each.grad.abs().max()) for each in model.parameters())
        assert math.isfinite(loss.item())
        assert (loss.item() > 0) == (largest > 0) == trained


@with_labels
def test_fields_are_the_same_for_each_kind_of_labels_and_for_rows_on_disk(adapter: Adapter) -> None:
    import datasets

    shards = PackedShards(GOLDEN / "v1-example")
    for packs in (1, 2):
        kinds: tuple[Any, ...] = ("hf", "shifted")
        hf, shifted = (PackedLoader(shards, packs, shuffle=False, labels=kind)[0] for kind in kinds)
        assert plain(adapter(hf)) == plain(adapter(shifted))
        rows = datasets.load_from_disk(GOLDEN / "v1-example").select(range(packs))
        for form in (None, "numpy", "torch"):
            assert plain(adapter([*rows.with_format(form)])) == plain(adapter(hf)) or (
                packs == 2 and adapter is EVERY["to_olmo"]  # a row is an instance there
            )


def of_loader(adapter: Adapter, loader: PackedLoader) -> Any:
    return adapter(loader[0])


NEED_TORCH: dict[str, Callable[[PackedLoader], Any]] = {
    **{name: partial(of_loader, adapter) for name, adapter in EVERY.items()},
    "seen_until": lambda loader: loaders.seen_until(loader[0]),
    "tree_mask": lambda loader: loaders.tree_mask(loader[0]),
    "batch.torch": lambda loader: loader[0].torch(),
    "batch.to": lambda loader: loader[0].to("cpu"),
    "batch.pin_memory": lambda loader: loader[0].pin_memory(),
    "dataloader": lambda loader: loader.dataloader(),
    "pin_memory": lambda loader: PackedLoader(loader.shards, 1, pin_memory=True)[0],
}


@pytest.mark.parametrize("name", NEED_TORCH)
def test_a_missing_torch_is_named_with_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = PackedLoader(PackedShards(GOLDEN / "v1-example"), 1)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install packprep\[torch\]"):
        NEED_TORCH[name](loader)


PAIR: Row = {**row_of(0, 3, 2), "pair_ids": [0, 0], "pair_sides": [0, 1]}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    path = tmp_path_factory.mktemp("pairs") / "out"
    columns = (*PLAIN, STANDARD_COLUMNS["pair_ids"], STANDARD_COLUMNS["pair_sides"])
    write_output(path, {"train": [[PAIR]]}, columns)
    return PackedShards(path)


@with_labels
def test_labels_of_both_sides_of_pairs_are_refused_and_those_of_the_chosen_ones_taken(
    pairs: PackedShards, adapter: Adapter
) -> None:
    both = PackedLoader(pairs, 1, sides="both")[0]
    for batch in (both, both.torch(), [PAIR]):
        with pytest.raises(ValueError, match="this adapter gives a trainer labels of both sides"):
            adapter(batch)
    adapter(PackedLoader(pairs, 1, sides="chosen")[0])
    adapter([{**row_of(0, 3), "pair_ids": [0], "pair_sides": [0]}])


@pytest.mark.parametrize("name", ["to_hf", "to_flattening", "to_hf_4d"])
def test_both_sides_give_fields_without_labels_where_they_are_asked_for(
    pairs: PackedShards, name: str
) -> None:
    both = PackedLoader(pairs, 1, sides="both")[0]
    for batch in (both, [PAIR]):
        fields = EVERY[name](batch, sides="both")  # type: ignore[call-arg]
        assert "labels" not in fields
        assert fields["input_ids"][0].tolist() == PAIR["tokens"]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    path = tmp_path_factory.mktemp("trees") / "out"
    return PackedShards(tree_output(path, [[1, 2, 3], [1, 2, 4]], [0, 0], max_length=8))


def of_batch(adapter: Adapter, _: PackedShards, batch: PackedBatch) -> Any:
    return adapter(batch)


REFUSE_TREES: dict[str, Callable[[PackedShards, PackedBatch], Any]] = {
    **{name: partial(of_batch, adapter) for name, adapter in EVERY.items()},
    "PackedLoader": lambda shards, _: PackedLoader(shards, 1),
    "batch_from_rows": lambda shards, _: loaders.batch_from_rows([dict(shards[0].columns)]),
    "context_slice": lambda _, batch: loaders.context_slice(batch, 0, 2),
    "Pack": lambda shards, _: list(shards[0].segments()),
    "to_trl_row": lambda shards, _: loaders.to_trl_row(dict(shards[0].columns)),
    "pair_log_probs": lambda _, b: loaders.pair_log_probs(torch.zeros(len(b), 4), b),
    "MaxTextSource": lambda shards, _: loaders.MaxTextSource(shards),
    "TorchtitanSource": lambda shards, _: loaders.TorchtitanSource(path=str(shards.path)).build(),
    "to_iterable_dataset": lambda shards, _: next(
        iter(loaders.to_iterable_dataset(PackedLoader(shards, 1, trees=True)))
    ),
    "labels='shifted'": lambda shards, _: PackedLoader(shards, 1, trees=True, labels="shifted"),
    "cp_size": lambda s, _: PackedLoader(s, 1, trees=True, labels="shifted", cp_size=2),
}


KNOW_TREES = "to_block_sparse to_flex_block_mask to_hf_4d tree_loss tree_mask unpack seen_until"
KNOW_TREES += " verify_isolation log_probs_and_entropy to_data_module to_node pack_sequences"
# They take arrays, models or trainers, or hold what others read.
NO_PACKS = (
    "BatchShape Cost Isolation LossLog PackMetrics PackedBatch PackedShards PairLogProbs Segment"
)
NO_PACKS += " attention_backend check_trl context_gather context_indices guard log_pack_metrics"
NO_PACKS += " loss_weights segment_means selective_log_probs varlen_attention"


def test_every_public_name_refuses_trees_or_knows_them() -> None:
    others = {*KNOW_TREES.split(), *NO_PACKS.split()}
    settings = {"labels='shifted'", "cp_size"}
    assert REFUSE_TREES.keys() - settings | others == {*loaders.__all__}


@pytest.mark.parametrize("name", sorted(REFUSE_TREES.keys() - {*KNOW_TREES.split()}))
def test_nothing_reads_a_tree_as_documents(trees: PackedShards, name: str) -> None:
    labels: Any = "none" if name == "context_slice" else "hf"
    batch = PackedLoader(trees, 1, trees=True, labels=labels)[0]
    with pytest.raises(ValueError, match=r"trees.*unshared\(\)"):
        REFUSE_TREES[name](trees, batch)


def test_other_sources_refuse_pairs_too(pairs: PackedShards, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MaxTextSource gives a trainer labels of both sides"):
        loaders.MaxTextSource(pairs)
    with pytest.raises(ValueError, match="TorchtitanSource gives a trainer labels of both sides"):
        loaders.TorchtitanSource(path=str(pairs.path)).build()
    with pytest.raises(ValueError, match="to_trl_row gives a trainer labels of both sides"):
        loaders.to_trl_row(PAIR)
