"""Packed fields in the code of the trainers, and every recipe, for `scripts/check_trainers`.

`python -m tests.helpers.trainers` runs all that the installed trainers allow, a line each, and
exits 1 if a recipe leaks, or if one that is made to leak does not.
"""

import ast
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets import load_from_disk

from packprep.loaders import (
    PackedLoader,
    PackedShards,
    to_llama_factory,
    to_megatron,
    to_olmo,
    to_seq_idx,
    to_torchtitan,
    to_torchtune,
)

from .recipes import (
    FILLER,
    LEAKS,
    PACKS,
    RECIPES,
    TOLERANCE,
    alone,
    difference,
    obstacle,
    source_of,
    write_shards,
)
from .torch_models import documents


def torchtune_fields(shards: Path) -> None:
    """Compare to_torchtune with PackedDataset and padded_collate_packed on the same documents."""
    from torchtune.data import padded_collate_packed
    from torchtune.datasets import PackedDataset

    texts = documents(PACKS[0])
    rows = [{"tokens": text, "labels": [-100, *text[1:]]} for text in texts]
    theirs = padded_collate_packed([PackedDataset(rows, max_seq_len=sum(PACKS[0]))[0]])
    ours = to_torchtune(
        [{"input_ids": [token for text in texts for token in text], "seq_lengths": PACKS[0]}]
    )
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert torch.equal(ours[name], value), name


def torchtitan_boundaries(shards: Path) -> None:
    """torchtitan's trainer unpacks the batch and reads the boundaries back from positions."""
    from torchtitan.models.common.attention import create_varlen_metadata_for_document

    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    fields, labels = to_torchtitan(batch, version="0.3")
    assert fields["input"].shape == fields["positions"].shape == labels.shape == (1, len(batch))
    metadata = create_varlen_metadata_for_document(fields["positions"])
    assert metadata.cu_seq_q.tolist() == metadata.cu_seq_k.tolist() == batch.cu_seqlens.tolist()
    assert metadata.max_q == metadata.max_k == batch.max_seqlen


def olmo_boundaries(shards: Path) -> None:
    """Compare to_olmo with OLMo-core's collator; its boundaries count the padding too."""
    from olmo_core.data.collator import DataCollator
    from olmo_core.data.utils import get_cumulative_document_lengths

    rows = [*load_from_disk(str(shards))]
    ours = to_olmo(rows)
    instances = [
        {"input_ids": tokens, "doc_lens": lengths[lengths > 0]}
        for tokens, lengths in zip(ours["input_ids"], ours["doc_lens"], strict=True)
    ]
    theirs = DataCollator(pad_token_id=0)(instances)
    assert theirs["max_doc_lens"] == ours["max_doc_lens"]
    for name in ("input_ids", "doc_lens"):
        assert theirs[name].dtype == ours[name].dtype
        assert torch.equal(theirs[name], ours[name]), name
    offsets = get_cumulative_document_lengths(ours["doc_lens"]).tolist()
    width = ours["input_ids"].shape[1]
    expected = {
        number * width + end for number, row in enumerate(rows) for end in row["cu_seqlens"]
    }
    assert set(offsets) == expected | {width * len(rows)}


def megatron_params(shards: Path) -> None:
    """PackedSeqParams accepts the arguments, and has the same numbers of segments."""
    from megatron.core.packed_seq_params import PackedSeqParams

    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    params = PackedSeqParams(**to_megatron(batch)["packed_seq_params"])
    assert params.cu_seqlens_q.tolist() == batch.cu_seqlens.tolist()
    if hasattr(params, "seq_idx"):
        assert torch.equal(params.seq_idx, to_seq_idx(batch))


def llama_factory_mask(shards: Path) -> None:
    """LLaMA-Factory's function makes the same mask from the numbers of the segments."""
    tree = ast.parse(source_of("llamafactory", "data/collator.py").read_text())
    (function,) = [
        node for node in tree.body if getattr(node, "name", "") == "prepare_4d_attention_mask"
    ]
    names: dict[str, Any] = {"torch": torch}
    exec(ast.unparse(function), names)
    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    numbers = to_seq_idx(batch) + 1
    numbers[:, -FILLER:] = 0
    theirs = names["prepare_4d_attention_mask"](numbers, torch.bfloat16)
    assert torch.equal(to_llama_factory(batch, mask_dtype=torch.bfloat16)["attention_mask"], theirs)


# Fields and boundaries of trainers whose models need a GPU.
CONTRACTS: dict[str, Callable[[Path], None]] = {
    "torchtune PackedDataset": torchtune_fields,
    "torchtitan boundaries": torchtitan_boundaries,
    "ai2-olmo-core boundaries": olmo_boundaries,
    "megatron-core PackedSeqParams": megatron_params,
    "llamafactory 4-D mask": llama_factory_mask,
}


def main() -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        write_shards(shards)
        versions = ", ".join(
            f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "datasets")
        )
        print(f"{versions}; losses alone {' '.join(f'{loss:.6f}' for loss in alone(shards))}")
        for number, (name, run) in enumerate((RECIPES | LEAKS | CONTRACTS).items()):
            if reason := obstacle(name):
                print(f"not run           {name}: {reason}")
                continue
            try:
                with redirect_stdout(StringIO()):  # trainers print their logs
                    result: Any = run(
                        *([shards] if name in CONTRACTS else [shards, Path(folder) / str(number)])
                    )
                size = difference(*result) if result else 0.0
                right = size > 1e-3 if name in LEAKS else size < TOLERANCE
                measured = f"{size:.1e}" if result else "equal"
            except Exception as error:
                right, measured = False, f"{type(error).__name__}: {error}"
            failed = failed or not right
            package = name.split()[0]
            line = f"{package} {version(package)} {name.removeprefix(package).strip()}"
            print(
                f"{'right' if right else 'WRONG'}  {measured:>9}  "
                f"{line}{', must leak' * (name in LEAKS)}",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
