"""Packed fields in the code of the trainers, and every recipe, for `scripts/check_trainers`.

`python scripts/checks/trainer_contracts.py PACKAGE` runs all checks of one installed trainer and
prints a line of JSON for each: its name, whether the contract holds, and what was measured. A check
that is made to leak holds if the comparison sees the leak.
"""

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import version
from io import StringIO
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import click
import datasets
import torch
from datasets import load_from_disk

if SECOND := os.environ.get("PACKPREP_EDITION") == "second":
    import second_edition  # before the modules that import the loaders
from trainer_recipes import CLASSES, TRAINERS, check_export, llama_factory

from packprep.loaders import (
    PackedLoader,
    PackedShards,
    batch_from_rows,
    to_llama_factory,
    to_megatron,
    to_olmo,
    to_padded,
    to_seq_idx,
    to_torchtitan,
    to_torchtune,
    verify_isolation,
)
from packprep.reports.recipe import Recipe, equal_recipes, packed_settings, packs_of_output
from packprep.reports.trainers import TRAINERS as TRAINER_SETTINGS
from tests.docs.blocks import load
from tests.helpers.one_line import PAGES, run_one_line
from tests.helpers.recipes import (
    COLLATORS,
    FILLER,
    LEAK,
    LEAKS,
    PACKS,
    RECIPES,
    REFUSED,
    TOLERANCE,
    difference,
    llama,
    tokenizer,
    write_shards,
)
from tests.helpers.torch_models import documents


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


def torchtitan_settings(shards: Path) -> None:
    """The configuration of the page takes the lines of `packprep equate --for torchtitan`."""
    recipe = Recipe(
        micro_batch=2, accumulation=3, ranks=1, epochs=1, learning_rate=1e-3, warmup_steps=2
    )
    [equal] = equal_recipes(packs_of_output(shards), recipe, "token").values()
    settings = packed_settings(equal)
    page = Path(__file__).parents[2] / "docs/train/torchtitan.md"
    [text] = [block.text for block in load(page) if block.file]
    lines = "".join(f"    {line}\n" for line in TRAINER_SETTINGS["torchtitan"].lines(settings))
    module = shards.with_name("packed_llama3.py")
    module.write_text(text.replace("    return config", f"{lines}    return config"))
    made = run_path(str(module))
    config = made["llama3_packed"]()  # its classes have slots: a wrong name is an error
    config.dataloader.dataset_path = str(shards)
    loader = made["PackedDataLoader"](
        config.dataloader,
        dp_world_size=1,
        dp_rank=0,
        seq_len=config.training.seq_len,
        local_batch_size=config.training.local_batch_size,
    )
    fields, _ = next(iter(loader))
    assert fields["input"].shape == (1, equal.contents.max_length)
    assert config.training.global_batch_size == equal.packed.rows_per_step
    assert config.training.steps == settings["steps"]
    assert config.lr_scheduler.warmup_steps == settings["warmup_steps"]
    assert config.optimizer.param_groups[-1].optimizer_kwargs["lr"] == settings["learning_rate"]


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
    collator = llama_factory("data.collator")
    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    numbers = to_seq_idx(batch) + 1
    numbers[:, -FILLER:] = 0
    theirs = collator.prepare_4d_attention_mask(numbers, torch.bfloat16)
    assert torch.equal(to_llama_factory(batch, mask_dtype=torch.bfloat16)["attention_mask"], theirs)


def sequences(shards: Path) -> list[list[dict[str, list[int]]]]:
    """The documents of each pack as trainers have them before they are packed."""
    packs = []
    for pack in PackedLoader(PackedShards(shards), 1, shuffle=False):
        bounds = zip(pairwise(pack.cu_seqlens.tolist()), pack.document_ids, strict=True)
        packs.append(
            [
                {
                    "input_ids": pack.tokens[start:end].tolist(),
                    "labels": pack.labels[start:end].tolist(),
                    "attention_mask": [1] * (end - start),
                    "position_ids": [*range(end - start)],
                }
                for (start, end), document in bounds
                if document >= 0
            ]
        )
    return packs


def equal_fields(ours: dict[str, Any], theirs: Any) -> None:
    """Raise AssertionError unless all fields of a trainer are ours, by name, dtype and value."""
    assert {*theirs} == {*ours} - {"use_cache"}
    for name, value in theirs.items():
        assert value.dtype == ours[name].dtype, name
        assert torch.equal(value, ours[name]), name


def axolotl_collators(shards: Path) -> None:
    """Axolotl's collators of packs and of single documents make the rows of to_padded."""
    from axolotl.utils.collators import batching

    padder, (batch,) = tokenizer(), PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    ours = partial(to_padded, batch, pad_token_id=padder.pad_token_id)
    version_2 = batching.V2BatchSamplerDataCollatorForSeq2Seq
    for multiple in (1, 8, 32):
        settings: dict[str, Any] = {"tokenizer": padder, "pad_to_multiple_of": multiple}
        options: dict[str, Any] = {"pad_to_multiple_of": multiple, "attention_mask": "segments"}
        equal_fields(ours(**options), version_2(**settings)(sequences(shards)))
        equal_fields(
            ours(positions="continue", **options),
            version_2(squash_position_ids=True, **settings)(sequences(shards)),
        )
        equal_fields(
            ours(pad_to_multiple_of=multiple, attention_mask="padding"),
            batching.BatchSamplerDataCollatorForSeq2Seq(**settings)(sequences(shards)),
        )
        singles = [each for pack in sequences(shards) for each in pack]
        equal_fields(
            ours(pad_to_multiple_of=multiple, rows="segments", mask="padding"),
            batching.DataCollatorForSeq2Seq(**settings)(singles),
        )


def same_boundaries(unpad: Callable[[Any], Any], shards: Path) -> None:
    """A trainer's get_unpad_data of the numbers gives cu_seqlens, and the tokens of documents."""
    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    fields = to_padded(batch, pad_to_multiple_of=16, mask="segments")
    places, boundaries, longest = unpad(fields["segment_ids"])
    documents = batch.document_ids >= 0
    assert boundaries.dtype == torch.int32
    assert boundaries.tolist() == batch.cu_seqlens[: documents.sum() + 1].tolist()
    assert longest == max(batch.cu_seqlens[1:] - batch.cu_seqlens[:-1])
    real = batch.torch().tokens[: len(batch) - FILLER]
    assert torch.equal(fields["input_ids"].reshape(-1)[places], real)


def axolotl_boundaries(shards: Path) -> None:
    from axolotl.monkeypatch.utils import get_unpad_data

    same_boundaries(get_unpad_data, shards)


def llama_factory_boundaries(shards: Path) -> None:
    same_boundaries(llama_factory("model.model_utils.packing").get_unpad_data, shards)


def llama_factory_rows(shards: Path, cutoff: int) -> list[dict[str, Any]]:
    """The packs as LLaMA-Factory's own processor makes them, filled to cutoff + 1 tokens."""
    module = llama_factory("data.processor.supervised")
    processor = module.PackedSupervisedDatasetProcessor.__new__(
        module.PackedSupervisedDatasetProcessor
    )
    processor.tokenizer = tokenizer()
    processor.data_args = SimpleNamespace(cutoff_len=cutoff, neat_packing=True)
    rows = []
    for pack in sequences(shards):
        encoded = iter([(each["input_ids"], each["labels"]) for each in pack])
        processor._encode_data_example = lambda encoded=encoded, **_: next(encoded)
        names = ("_system", "_tools", "_images", "_videos", "_audios")
        columns: dict[str, list[Any]] = {name: [None] * len(pack) for name in names}
        columns |= {"_prompt": [[""]] * len(pack), "_response": [[""]] * len(pack)}
        made = processor.preprocess_dataset(columns)
        assert len(made["input_ids"]) == 1  # the knapsack keeps the documents of a pack together
        rows.append({name: values[0] for name, values in made.items()})
    return rows


def llama_factory_collator(shards: Path) -> None:
    """LLaMA-Factory's collator of neat_packing makes the rows of to_padded, with its 4-D mask."""
    collator = llama_factory("data.collator").SFTDataCollatorWith4DAttentionMask
    cutoff = max(map(sum, PACKS))
    text_only = SimpleNamespace(
        image_token=None, audio_token=None, get_mm_inputs=lambda *_, **__: {}
    )
    rows = llama_factory_rows(shards, cutoff)
    batch = batch_from_rows(rows, boundaries="positions")
    for dtype in (torch.float32, torch.bfloat16):
        theirs = collator(
            tokenizer=tokenizer(),
            template=SimpleNamespace(mm_plugin=text_only),
            block_diag_attn=True,
            neat_packing=True,
            attn_implementation="sdpa",
            compute_dtype=dtype,
        )([dict(row) for row in rows])
        ours = to_padded(batch, cutoff + 1, mask="4d", dtype=dtype, padding_positions="zero")
        equal_fields(ours, theirs)


def flex_attention(shards: Path) -> None:
    """Logits of every call with FlexAttention, which needs a compiler and has no CPU backward."""
    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    model = llama(attention="flex_attention").eval()
    for name, collate in COLLATORS.items():
        if SECOND and name in second_edition.GONE:
            continue
        if "mask" not in name:  # such a mask is for SDPA and eager
            found = verify_isolation(model, batch.torch(), inputs=collate)
            assert found.isolated, f"{name}: {found}"


def torchtitan_flex_mask(shards: Path) -> None:
    """torchtitan's mask for FlexAttention isolates the segments."""
    from torchtitan.models.common.attention import get_document_mask_mod

    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    fields, _ = to_torchtitan(batch, version="0.3")
    places = torch.arange(len(batch))
    zero = torch.zeros((), dtype=torch.int64)
    sees = get_document_mask_mod(fields["positions"])(zero, zero, places[:, None], places[None])
    segment = to_seq_idx(batch)[0]
    assert torch.equal(sees, segment[:, None] == segment[None])


def olmo_sdpa(shards: Path) -> None:
    """OLMo-core's attention with SDPA refuses boundaries; it does not ignore them."""
    from olmo_core.data.utils import get_cumulative_document_lengths
    from olmo_core.nn.attention.backend import TorchAttentionBackend

    rows = [*load_from_disk(str(shards))]
    fields = to_olmo(rows)
    tokens = torch.zeros(*fields["input_ids"].shape, 2, 4)
    attention = TorchAttentionBackend(head_dim=4, n_heads=2)
    attention((tokens, tokens, tokens))
    boundaries = get_cumulative_document_lengths(fields["doc_lens"])
    try:
        attention((tokens, tokens, tokens), cu_doc_lens=boundaries)
    except RuntimeError:
        return
    raise AssertionError("it took cu_doc_lens without an error")


def one_line(package: str, _shards: Path) -> None:
    """The script of a page that prepares its packs by one line trains."""
    run_one_line(package)


# Fields and boundaries of trainers whose models need a GPU, and scripts of pages.
CONTRACTS: dict[str, Callable[[Path], None]] = {
    "transformers flex attention": flex_attention,
    "torchtune PackedDataset": torchtune_fields,
    "torchtitan boundaries": torchtitan_boundaries,
    "torchtitan flex mask": torchtitan_flex_mask,
    "torchtitan settings of equate": torchtitan_settings,
    "ai2-olmo-core boundaries": olmo_boundaries,
    "ai2-olmo-core SDPA refuses": olmo_sdpa,
    "megatron-core PackedSeqParams": megatron_params,
    "llamafactory 4-D mask": llama_factory_mask,
    "llamafactory collator of neat_packing": llama_factory_collator,
    "llamafactory get_unpad_data": llama_factory_boundaries,
    "axolotl collators": axolotl_collators,
    "axolotl get_unpad_data": axolotl_boundaries,
    **{
        f"{package} reads packprep export --to {to}": (
            partial(second_edition.check_export, to, reader)
            if SECOND
            else partial(check_export, to)
        )
        for to, (package, reader) in CLASSES.items()
        if not SECOND or to != "mds"
    },
    **{f"{package} in one line": partial(one_line, package) for package in PAGES},
}


def checks(package: str) -> dict[str, Callable[..., Any]]:
    """The checks of a package, by name."""
    return {
        name: check
        for name, check in (RECIPES | LEAKS | REFUSED | TRAINERS | CONTRACTS).items()
        if name.split()[0] == package
        and not (SECOND and any(words in name for words in second_edition.GONE))
    }


@click.command(help=__doc__)
@click.argument("package")
def main(package: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        write_shards(shards)
        for number, (name, check) in enumerate(checks(package).items()):
            try:
                with redirect_stdout(StringIO()):  # trainers print their logs
                    result: Any = (
                        check(shards)
                        if name in CONTRACTS
                        else check(shards, Path(folder) / str(number))
                    )
                size = difference(*result) if result else 0.0
                holds = size > LEAK if name in LEAKS else size < TOLERANCE
                measured = f"{size:.1e}" if result else "equal"
            except Exception as error:
                message = " ".join(str(error).split())[:300]
                holds, measured = False, f"{type(error).__name__}: {message}"
            line = {"check": name, "holds": holds, "measured": measured, "leak": name in LEAKS}
            print(json.dumps(line | {"version": version(package)}), flush=True)


if __name__ == "__main__":
    main()
