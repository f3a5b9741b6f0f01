"""Packs in the code of the trainers themselves, for `scripts/check_trainers`.

`python scripts/checks/trainer_contracts.py PACKAGE` runs all checks of one installed trainer and
prints a line of JSON for each: its name, whether the contract holds, and what was measured. A check
that is made to leak holds if the comparison sees the leak.
"""

import importlib
import json
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from io import StringIO
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import click
import datasets
import torch
from datasets import load_from_disk
from torch.nn.functional import cross_entropy
from trainer_recipes import (
    COLLATORS,
    LEAK,
    LEAKS,
    LONGEST,
    ONE_PACK,
    PACKS,
    RECIPES,
    REFUSED,
    SETTINGS,
    TOLERANCE,
    VOCABULARY,
    Both,
    Places,
    Recipe,
    alone,
    difference,
    hf_trainer,
    llama,
    recorded,
    steps,
    tokenizer,
    train,
    train_alone,
    whole_batch,
    write_packs,
)

from packprep.exports.export import export
from packprep.loaders import (
    PackedShards,
    to_llama_factory,
    to_megatron,
    to_olmo,
    to_padded,
    to_seq_idx,
    to_torchtitan,
    to_torchtune,
    verify_isolation,
)

ROOT = Path(__file__).parents[2]
Check = Callable[[Places], object]


def sequences(places: Places) -> list[list[list[int]]]:
    """Ids of the documents of each pack."""
    return [
        [pack["tokens"][start:end].tolist() for start, end in pairwise(pack["cu_seqlens"].tolist())]
        for pack in PackedShards(places.packed)
    ]


def flex_attention(places: Places) -> None:
    """Logits of every call with FlexAttention, which needs a compiler and has no CPU backward."""
    batch, model = whole_batch(places).torch(), llama("flex_attention").eval()
    for name, collate in COLLATORS.items():
        if "mask" not in name:  # such a mask is for SDPA and eager
            found = verify_isolation(model, batch, inputs=collate)
            assert found.isolated, f"{name}: {found}"


# --- Axolotl ---


def axolotl(places: Places) -> Both:
    """Rows of an export through Axolotl's own collator, a pack at a time."""
    export(str(places.packed), "axolotl", str(places.out / "rows"))
    rows = load_from_disk(str(places.out / "rows" / "train"))
    module: Any = importlib.import_module("axolotl.utils.collators.batching")
    return hf_trainer(module.DataCollatorForSeq2Seq(tokenizer()), places, rows, **ONE_PACK)


def same_boundaries(module: str, places: Places) -> None:
    """A trainer's get_unpad_data of the numbers gives cu_seqlens, and the tokens of documents."""
    package, _, rest = module.partition(".")
    home: Any = (
        llama_factory(rest) if package == "llamafactory" else importlib.import_module(module)
    )
    batch = whole_batch(places).torch()
    fields = to_padded(batch, pad_to_multiple_of=16, mask="segments")
    kept, boundaries, longest = home.get_unpad_data(fields["segment_ids"])
    assert boundaries.dtype == torch.int32
    assert boundaries.tolist() == batch.cu_seqlens.tolist()
    assert longest == batch.max_seqlen
    assert torch.equal(fields["input_ids"].reshape(-1)[kept], batch.tokens)


# --- LLaMA-Factory ---


def llama_factory(module: str) -> Any:
    """A module of LLaMA-Factory, which imports torchaudio for models of speech only."""
    audio = ModuleType("torchaudio")
    audio.__spec__ = ModuleSpec("torchaudio", None)
    sys.modules.setdefault("torchaudio", audio)
    return importlib.import_module(f"llamafactory.{module}")


def llama_factory_trainer(mask_dtype: Any, places: Places) -> Both:
    """LLaMA-Factory's own trainer of SFT, with its own arguments."""
    hparams, sft = llama_factory("hparams"), llama_factory("train.sft.trainer")
    arguments = hparams.TrainingArguments(str(places.out), remove_unused_columns=False, **SETTINGS)
    trainer = recorded(sft.CustomSeq2SeqTrainer)(
        finetuning_args=hparams.FinetuningArguments(),
        processor=None,
        model=llama(),
        args=arguments,
        train_dataset=load_from_disk(str(places.packed)),
        data_collator=partial(to_llama_factory, mask_dtype=mask_dtype),
        tokenizer=tokenizer(),
    )
    trainer.train()
    return steps(trainer), alone(places)


def llama_factory_run(places: Places) -> Both:
    """LLaMA-Factory on an export, with its own reader of `tokenized_path`, collator and mask."""
    export(str(places.packed), "llama-factory", str(places.out / "rows"))
    for part in (llama(), tokenizer()):
        part.save_pretrained(places.out / "model")
    settings = SETTINGS | {
        "model_name_or_path": str(places.out / "model"),
        "template": "empty",
        "dataset": "packed",
        "tokenized_path": str(places.out / "rows"),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "neat_packing": True,
        "flash_attn": "sdpa",
        "cutoff_len": LONGEST,
        "logging_steps": 1,
        "output_dir": str(places.out / "trained"),
    }
    llama_factory("train.tuner").run_exp(settings)
    state = json.loads((places.out / "trained" / "trainer_state.json").read_text())
    return [log["loss"] for log in state["log_history"] if "loss" in log], alone(places)


def llama_factory_mask(places: Places) -> None:
    """LLaMA-Factory's function makes the same mask from the numbers of the segments."""
    batch = whole_batch(places)
    made_by = llama_factory("data.collator").prepare_4d_attention_mask
    for dtype in (torch.float32, torch.bfloat16):
        ours = to_llama_factory(batch, mask_dtype=dtype)["attention_mask"]
        assert torch.equal(ours, made_by(to_seq_idx(batch) + 1, dtype))


# --- torchtitan, OLMo-core, Megatron-Core, torchtune ---


def torchtitan_masks(places: Places) -> None:
    """torchtitan reads the boundaries back from positions, and its mask isolates the segments."""
    from torchtitan.models.common import attention

    batch = whole_batch(places)
    fields, labels = to_torchtitan(batch, version="0.3")
    assert fields["input"].shape == fields["positions"].shape == labels.shape == (1, len(batch))
    metadata = attention.create_varlen_metadata_for_document(fields["positions"])
    assert metadata.cu_seq_q.tolist() == metadata.cu_seq_k.tolist() == batch.cu_seqlens.tolist()
    assert metadata.max_q == metadata.max_k == batch.max_seqlen
    places_, zero = torch.arange(len(batch)), torch.zeros((), dtype=torch.int64)
    mask = attention.get_document_mask_mod(fields["positions"])
    segment = to_seq_idx(batch)[0]
    sees = mask(zero, zero, places_[:, None], places_[None])
    assert torch.equal(sees, segment[:, None] == segment[None])


def torchtitan_page(places: Places) -> None:
    """The dataloader of docs/trainers.md gives torchtitan's trainer batches of packs."""
    text = (ROOT / "docs" / "trainers.md").read_text()
    script = places.out.with_suffix(".py")
    script.write_text(text.partition('not-run="needs torchtitan"\n')[2].partition("```")[0])
    made = run_path(str(script))["PackedDataLoader"]
    config = made.Config(dataset_path=str(places.packed), packs=2)
    sizes = {"seq_len": 2 * LONGEST, "local_batch_size": 1}
    fields, labels = next(iter(made(config, dp_world_size=1, dp_rank=0, **sizes)))
    assert fields["input"].shape == labels.shape == (1, 2 * LONGEST)


def olmo_boundaries(places: Places) -> None:
    """Compare to_olmo with OLMo-core's collator; its boundaries count the padding too."""
    from olmo_core.data.collator import DataCollator
    from olmo_core.data.utils import get_cumulative_document_lengths
    from olmo_core.nn.attention.backend import TorchAttentionBackend

    rows = [*load_from_disk(str(places.packed))]
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
    offsets = get_cumulative_document_lengths(ours["doc_lens"])
    width = ours["input_ids"].shape[1]
    ends = {number * width + end for number, row in enumerate(rows) for end in row["cu_seqlens"]}
    assert {*offsets.tolist()} == ends | {width * len(rows)}
    tokens = torch.zeros(*ours["input_ids"].shape, 2, 4)
    attention = TorchAttentionBackend(head_dim=4, n_heads=2)
    attention((tokens, tokens, tokens))
    try:
        attention((tokens, tokens, tokens), cu_doc_lens=offsets)
    except RuntimeError:  # its SDPA refuses boundaries; it does not ignore them
        return
    raise AssertionError("its SDPA took cu_doc_lens without an error")


def olmo_reads(places: Places) -> None:
    """OLMo-core finds the documents of an export, from the metadata beside the ids."""
    from olmo_core.data.utils import iter_document_indices

    export(str(places.packed), "npy", str(places.out / "npy"))
    path = places.out / "npy" / "train.npy"
    found = [end - first for first, end in iter_document_indices(path, use_array_if_local=False)]
    assert found == [length for pack in PACKS for length in pack]


def megatron_params(places: Places) -> None:
    """PackedSeqParams accepts the arguments, and has the same numbers of segments."""
    from megatron.core.packed_seq_params import PackedSeqParams

    batch = whole_batch(places)
    params = PackedSeqParams(**to_megatron(batch)["packed_seq_params"])
    assert params.cu_seqlens_q.tolist() == batch.cu_seqlens.tolist()
    if hasattr(params, "seq_idx"):
        assert torch.equal(params.seq_idx, to_seq_idx(batch))


def megatron_reads(places: Places) -> None:
    """megatron-core's IndexedDataset finds the documents and packs of an export."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    export(str(places.plain), "megatron", str(places.out / "megatron"))  # it has no mask
    data = IndexedDataset(str(places.out / "megatron" / "train"))
    found = [data[number].tolist() for number in range(len(data))]
    assert found == [each for pack in sequences(places) for each in pack]
    packs = [end - first for first, end in pairwise(data.document_indices.tolist())]
    assert packs == [*map(len, PACKS)]


def torchtune(places: Places) -> Both:
    """A Llama of torchtune, called like in its recipes, which shift the labels."""
    from torchtune.models.llama3 import llama3

    def model() -> Any:
        torch.manual_seed(0)
        heads = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
        sizes = {"embed_dim": 32, "intermediate_dim": 48, "max_seq_len": 128}
        return llama3(vocab_size=VOCABULARY, **heads, **sizes)

    packed, single = model(), model()

    def loss() -> Any:
        fields = to_torchtune(whole_batch(places))
        labels = fields.pop("labels")
        return cross_entropy(packed(**fields)[0, :-1], labels[0, 1:])

    losses = train(loss, packed.parameters())
    return losses, train_alone(lambda ids: single(ids), single.parameters(), places)


# By name; the first word is the package. A recipe returns losses, another check nothing.
CONTRACTS: dict[str, Recipe | Check] = {
    "transformers flex attention": flex_attention,
    "axolotl collator on an export": axolotl,
    "axolotl get_unpad_data": partial(same_boundaries, "axolotl.monkeypatch.utils"),
    "llamafactory CustomSeq2SeqTrainer": partial(llama_factory_trainer, None),
    "llamafactory CustomSeq2SeqTrainer, 4-D mask": partial(llama_factory_trainer, torch.float32),
    "llamafactory on an export": llama_factory_run,
    "llamafactory 4-D mask of neat_packing": llama_factory_mask,
    "llamafactory get_unpad_data": partial(
        same_boundaries, "llamafactory.model.model_utils.packing"
    ),
    "torchtitan boundaries and mask": torchtitan_masks,
    "torchtitan dataloader of the page": torchtitan_page,
    "ai2-olmo-core boundaries": olmo_boundaries,
    "ai2-olmo-core reads packprep export --to npy": olmo_reads,
    "megatron-core PackedSeqParams": megatron_params,
    "megatron-core reads packprep export --to megatron": megatron_reads,
    "torchtune model, to_torchtune": torchtune,
}


@click.command(help=__doc__)
@click.argument("package")
def main(package: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        built = write_packs(Path(folder))
        for number, (name, check) in enumerate((RECIPES | LEAKS | REFUSED | CONTRACTS).items()):
            if name.split()[0] != package:
                continue
            out = built.out.with_name(f"out-{number}")
            try:
                with redirect_stdout(StringIO()):  # trainers print their logs
                    result: Any = check(built._replace(out=out))
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
