"""Batches in which nothing is trained, and what a user meets who begins with little."""

import math
from pathlib import Path
from typing import Any

import pytest

import packprep.loaders as loaders
from packprep import BuildConfig, build
from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas.errors import FormatError
from tests.helpers.corpus import write_jsonl
from tests.helpers.torch_models import skip_without, tiny_llama

ADAPTERS = (
    "to_axolotl",
    "to_flattening",
    "to_forgather",
    "to_hf",
    "to_hf_4d",
    "to_llama_factory",
    "to_padded",
)
"""Those whose fields are the call of a transformers model, with labels."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rows")
    source = write_jsonl(folder / "rows.jsonl", [{"ids": [i % 9 + 1] * 5} for i in range(4)])
    return {
        "sources": [source],
        "output": str(folder / "out"),
        "input_ids_column": "ids",
        "vocab_size": 16,
        "max_length": 8,
    }


@pytest.fixture(scope="module")
def filled(rows: dict[str, Any]) -> Path:
    """Six packs, of which the last two are filler."""
    build(BuildConfig(**rows, packs_multiple_of=3, remainder="fill"))
    return Path(rows["output"])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_batch_of_filler_has_a_loss_of_zero_and_no_gradient(filled: Path, adapter: str) -> None:
    skip_without("torch", "transformers")
    model = tiny_llama()
    options = {"config": model.config} if adapter == "to_hf_4d" else {}
    losses = []
    for batch in PackedLoader(PackedShards(filled), 1, shuffle=False):
        fields = getattr(loaders, adapter)(batch, **options)
        assert ("num_items_in_batch" in fields) == (batch.num_items == 0)
        model.zero_grad()
        loss = model(**fields).loss
        loss.backward()
        losses.append(loss.item())
        largest = max(float(each.grad.abs().max()) for each in model.parameters())
        assert (largest == 0) == (batch.num_items == 0)
    assert losses[4:] == [0, 0]
    assert all(math.isfinite(loss) and loss > 0 for loss in losses[:4])


def test_a_loader_takes_the_path_of_an_output(filled: Path) -> None:
    named, opened = PackedLoader(str(filled), 2), PackedLoader(PackedShards(filled), 2)
    assert [batch.tokens.tolist() for batch in named] == [b.tokens.tolist() for b in opened]
    assert len(PackedLoader(filled, 2)) == 3


def test_a_missing_torch_is_named_with_what_to_install(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = PackedLoader(filled, 2)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    for call in (lambda: loaders.to_hf(loader[0]), lambda: loader[0].torch(), loader.dataloader):
        with pytest.raises(ModuleNotFoundError, match=r"pip install packprep\[torch\]"):
            call()


def test_rows_of_an_index_say_what_they_are(rows: dict[str, Any], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    output = str(tmp_path / "index")
    build(BuildConfig(**rows | {"output": output}, materialize="index"))
    opened = datasets.load_from_disk(output)
    with pytest.raises(FormatError, match=r"an index .*which has no tokens; read it with PackedSh"):
        loaders.batch_from_rows([opened[0]])
