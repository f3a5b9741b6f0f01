"""Preference pairs in training.

Log-probabilities, DPO loss and gradients of packs are those of separate rows, and both sides are
read only where that is asked for.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedBatch, PackedLoader, PackedShards, batch_from_rows, context_slice
from packprep.schemas import STANDARD_COLUMNS
from tests.chat.test_build import TEMPLATE
from tests.helpers import warm
from tests.helpers.corpus import save_tokenizer
from tests.helpers.tiny_shards import Row, row_of, write_output
from tests.helpers.torch_models import VOCABULARY, documents, skip_without, tiny_llama
from tests.windows.test_pairs import build_ids

from .test_trainers import ROOT, losses_in

skip_without("torch", "transformers")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from packprep.loaders import (  # noqa: E402
    PairLogProbs,
    pair_log_probs,
    selective_log_probs,
    to_hf,
)

COLUMNS = ("pair_ids", "pair_sides")
PER_SIDE = ("document_ids", "document_starts", "segment_lengths", *COLUMNS)
STORED = ("tokens", "cu_seqlens", "labels", *PER_SIDE)

# (pair, side, tokens of the prompt, tokens of the answer)
Side = tuple[int, int, int, int]
# Three packs: filler in the second, the rejected side first in the third, one token alone on a
# side, a short answer.
PACKS: list[list[Side]] = [
    [(0, 0, 3, 9), (0, 1, 3, 4), (1, 0, 5, 1), (1, 1, 5, 6)],
    [(2, 0, 2, 7), (2, 1, 2, 2)],
    [(4, 1, 6, 3), (4, 0, 6, 8), (3, 0, 1, 1), (3, 1, 1, 12)],
]
PAIRS = [0, 1, 2, 4, 3]


def ids_of(side: Side) -> list[int]:
    """Token ids of a side: the prompt is that of the pair."""
    pair, number, prompt, answer = side
    return documents([prompt], seed=pair)[0] + documents([answer], seed=100 + 2 * pair + number)[0]


def row_of_sides(sides: Sequence[Side], multiple: int = 4, room: int = 0) -> Row:
    """A pack of these sides, each padded to a multiple, and then filler up to `room` tokens."""
    row: dict[str, list[int]] = {name: [] for name in STORED}
    row["cu_seqlens"].append(0)

    def add(ids: list[int], prompt: int, length: int, *of_side: int) -> None:
        padding = length - len(ids)
        row["tokens"] += ids + [0] * padding
        row["labels"] += [-100] * prompt + ids[prompt:] + [-100] * padding
        row["cu_seqlens"].append(len(row["tokens"]))
        for name, value in zip(PER_SIDE, of_side, strict=True):
            row[name].append(value)

    for side in sides:
        pair, number, prompt, answer = side
        size = prompt + answer
        add(ids_of(side), prompt, size + -size % multiple, pair, 0, size, pair, number)
    if (filler := room - len(row["tokens"])) > 0:
        add([], 0, filler, -1, 0, 0, -1, -1)
    return row


def write(directory: Path, rows: Sequence[Row]) -> PackedShards:
    columns = [STANDARD_COLUMNS[name] for name in STORED]
    write_output(directory, {"train": [rows]}, columns, max_length=64, vocab_size=VOCABULARY)
    return PackedShards(directory)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    rows = [row_of_sides(sides, room=24) for sides in PACKS]
    return write(tmp_path_factory.mktemp("pairs") / "out", rows)


def batches_of(shards: PackedShards, packs: int = 3, **options: Any) -> list[PackedBatch]:
    return [*PackedLoader(shards, packs, **{"sides": "both", "shuffle": False, **options})]


def packed(model: Any, batch: PackedBatch) -> Any:
    return pair_log_probs(model(**to_hf(batch, sides="both")).logits, batch, chunk=7)


SETTINGS: list[dict[str, Any]] = [
    {"labels": "hf"},
    {"labels": "shifted"},
    {"labels": "shifted", "packs": 1},
    {"pad_to": 200},
    {"packs": 2, "remainder": "fill"},
    {"labels": "shifted", "max_segments": 20},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_tokens_trained_are_counted_for_means(
    shards: PackedShards, options: dict[str, Any]
) -> None:
    batches = batches_of(shards, **options)
    parts = [pair_log_probs(torch.full((len(each),), -0.5), each) for each in batches]
    got = PairLogProbs(*map(torch.cat, zip(*parts, strict=True)))
    assert got.pair_ids.tolist() == PAIRS
    assert got.chosen_tokens.tolist() == [9, 1, 7, 8, 1]
    assert got.rejected_tokens.tolist() == [4, 6, 2, 3, 12]
    assert (got.chosen / got.chosen_tokens).tolist() == [-0.5] * 5
    assert (got.rejected / got.rejected_tokens).tolist() == [-0.5] * 5
    batch = batches[0]
    half = torch.zeros(len(batch), VOCABULARY, dtype=torch.bfloat16)
    assert pair_log_probs(half, batch).chosen.dtype == torch.float32
    filler = batch_from_rows([row_of_sides([], room=8)])  # type: ignore[list-item, unused-ignore]
    assert [field.tolist() for field in pair_log_probs(torch.zeros(8), filler)] == [[]] * 5


def test_log_probabilities_in_chunks_give_what_logits_give(shards: PackedShards) -> None:
    (batch,) = batches_of(shards)
    model = tiny_llama()
    hidden = model.model(**to_hf(batch, sides="both")).last_hidden_state[0]
    labels = torch.from_numpy(batch.labels_as("shifted"))
    values = selective_log_probs(hidden, model.lm_head.weight, labels, chunk=16)
    for ours, wanted in zip(pair_log_probs(values, batch), packed(model, batch), strict=True):
        torch.testing.assert_close(ours, wanted)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of the libraries' own making
def test_sums_and_gradients_of_packs_are_those_of_trls_dpo_on_padded_rows(
    shards: PackedShards, tmp_path: Path
) -> None:
    """TRL's own collator and log-probabilities, on the same prompts and answers as rows.

    Of packs written here, and of a build of these rows.
    """
    trainer = pytest.importorskip("trl.trainer.dpo_trainer")
    from trl.trainer.utils import add_fused_lm_head

    sides = {side[:2]: side for pack in PACKS for side in pack}
    rows = []
    for pair in sorted(PAIRS):
        chosen, rejected, prompt = (*(ids_of(sides[pair, n]) for n in (0, 1)), sides[pair, 0][2])
        answers = {"chosen_ids": chosen[prompt:], "rejected_ids": rejected[prompt:]}
        rows.append({"prompt_ids": chosen[:prompt], **answers})
    inputs = trainer.DataCollatorForPreference(pad_token_id=0)(rows)
    labels = inputs["input_ids"].masked_fill(inputs.pop("completion_mask") == 0, -100)
    model = tiny_llama()
    built = build_ids(
        tmp_path / "rows", [row | {"margin": 0.5} for row in rows], vocab_size=VOCABULARY
    )
    ours = [packed(model, batches_of(x, len(x))[0]) for x in (shards, PackedShards(built))]
    add_fused_lm_head(model)
    theirs = model(**inputs, labels=labels, use_cache=False, fused_lm_head=True).log_probs.sum(1)
    wanted = gradients_of_dpo(model, theirs)
    for each in ours:
        order = each.pair_ids.argsort()
        both = torch.cat([each.chosen[order], each.rejected[order]])
        torch.testing.assert_close(both, theirs, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(gradients_of_dpo(model, both), wanted, atol=1e-5, rtol=1e-4)


def gradients_of_dpo(model: Any, sums: torch.Tensor) -> Any:
    """Gradients of the loss, with a reference that gives every side the same probability."""
    chosen, rejected = sums.chunk(2)
    loss = -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()
    return torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)


@st.composite
def packs_of_pairs(draw: st.DrawFn) -> list[list[Side]]:
    """Packs whose pairs may be there twice, with sides in any order."""
    packs, size = [], st.tuples(st.integers(0, 3), st.integers(1, 4))
    for pairs in draw(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=3)):
        orders = [(pair, draw(st.permutations([0, 1]))) for pair in pairs]
        packs.append([(pair, side, *draw(size)) for pair, order in orders for side in order])
    return packs


@given(
    packs_of_pairs(),
    st.sampled_from([1, 4]),
    st.sampled_from([8, 64]),
    st.sampled_from(["hf", "shifted"]),
)
def test_sums_of_any_packs_are_those_of_a_loop(
    packs: list[list[Side]], multiple: int, room: int, kind: Any
) -> None:
    rows = [row_of_sides(sides, multiple, room) for sides in packs]
    batch = batch_from_rows(rows)  # type: ignore[arg-type, unused-ignore]
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(len(batch), dtype=torch.float64, generator=generator)
    starts, wanted = iter(batch.cu_seqlens.tolist()), []
    for sides, row in zip(packs, rows, strict=True):
        places = [next(starts) for _ in row["pair_ids"]]
        waiting: list[tuple[int, int, float]] = []
        for (pair, number, prompt, answer), start in zip(sides, places, strict=False):
            first = start + max(prompt, 1) - 1  # nothing predicts the first token of a segment
            total = values[first : start + prompt + answer - 1].sum().item()
            match = next((entry for entry in waiting if entry[:2] == (pair, 1 - number)), None)
            if match is None:
                waiting.append((pair, number, total))
            else:
                waiting.remove(match)
                wanted.append((pair, match[2], total) if number else (pair, total, match[2]))
    if kind == "shifted":
        batch.labels, batch.label_kind = batch.labels_as("shifted"), "shifted"
    got = pair_log_probs(values, batch)
    results = zip(got.pair_ids.tolist(), got.chosen.tolist(), got.rejected.tolist(), strict=True)
    for (pair, *ours), (expected, *sums) in zip(results, wanted, strict=True):
        assert pair == expected
        assert ours == pytest.approx(sums, abs=1e-12)


def without(batch: PackedBatch, *names: str) -> PackedBatch:
    batch.extra = {name: values for name, values in batch.extra.items() if name not in names}
    return batch


def without_a_side(batch: PackedBatch) -> PackedBatch:
    batch.extra["pair_sides"][1] = -1
    return batch


@pytest.mark.parametrize(
    ("change", "shape", "message"),
    [
        (lambda batch: without(batch, *COLUMNS), (112,), "has no pair_ids and no pair_sides; buil"),
        (lambda batch: without(batch, "pair_sides"), (112,), "the batch has no pair_sides; build"),
        (without_a_side, (112,), "pair 0 has 1 chosen and 0 rejected sides in the batch"),
        (lambda batch: batch, (103,), r"values have shape \[103\] and the batch has 112 tokens"),
        (lambda batch: batch, (2, 112, 64), r"values have shape \[2, 112, 64\] and the batch has"),
        (lambda batch: context_slice(batch, 0, 2), (56,), "56 tokens of 112, so it is a context"),
    ],
)
def test_batches_and_values_that_cannot_work_are_a_sentence(
    shards: PackedShards, change: Callable[[Any], Any], shape: tuple[int, ...], message: str
) -> None:
    (batch,) = batches_of(shards, labels="shifted", cp_size=2)
    with pytest.raises(ValueError, match=message):
        pair_log_probs(torch.zeros(shape), change(batch))
    with pytest.raises(ValueError, match="has no labels; ask PackedLoader for labels='hf' or"):
        pair_log_probs(torch.zeros(112), batches_of(shards, labels="none")[0])


FIELDS = ["tokens", "position_ids", "cu_seqlens", "labels", "loss_weights", "max_seqlen"]
FIELDS += ["label_kind"]


def fields_of(batch: Any, kept: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(batch, name) for name in FIELDS}
    values |= {name: getattr(batch, name, None) for name in PER_SIDE[:3]}
    values |= {name: batch.extra[name] for name in kept}
    return {name: np.asarray(value).tolist() for name, value in values.items()}


TWINS: list[dict[str, Any]] = [
    {},
    {"labels": "shifted", "loss_weights": "segment"},
    {"labels": "none", "pad_multiple": 8},
    {"max_segments": 24, "loss_weights": "document"},
    {"remainder": "fill", "packs": 3, "columns": ["pair_sides", "document_starts"]},
]


@given(packs_of_pairs().filter(all), st.sampled_from(TWINS))
def test_chosen_batches_are_those_of_shards_without_the_rejected_sides(
    tmp_path_factory: pytest.TempPathFactory, packs: list[list[Side]], settings: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("twins")
    kept = [[side for side in pack if side[1] == 0] for pack in packs]
    pairs = write(folder / "pairs", [row_of_sides(pack) for pack in packs])
    alone = write(folder / "alone", [row_of_sides(pack) for pack in kept])
    options = {"packs": 1, **settings}
    columns = options.get("columns", ())
    found = [fields_of(each, columns) for each in batches_of(pairs, sides="chosen", **options)]
    assert found == [fields_of(each, columns) for each in batches_of(alone, **options)]
    assert found


def test_a_loader_of_pairs_is_told_what_to_do_with_sides(
    shards: PackedShards, tmp_path: Path
) -> None:
    for columns in ([], ["pair_sides", "document_starts"]):
        (batch,) = batches_of(shards, columns=columns)
        assert {*batch.extra} == {*columns, *COLUMNS}
        assert batch.extra["pair_sides"].tolist() == [0, 1, 0, 1, 0, 1, -1, 1, 0, 0, 1]
    assert "sides='chosen'" in repr(PackedLoader(shards, 1, sides="chosen"))
    write_output(tmp_path / "plain", {"train": [[row_of(0, 3)]]})
    refused: list[tuple[Any, Any, str]] = [
        (shards, None, "has preference pairs, .* pass sides='both' .* or sides='chosen'"),
        (shards, "rejected", "sides is 'rejected'; expected 'both', 'chosen' or None"),
        (tmp_path / "plain", "both", "has no preference pairs; leave out sides='both'"),
    ]
    for of, sides, words in refused:
        with pytest.raises(ValueError, match=words):
            PackedLoader(of, 1, sides=sides)


@pytest.mark.long
def test_the_example_learns_preferences_with_the_commands_it_shows(tmp_path: Path) -> None:
    """The commands that scripts/examples/train_dpo.py shows, with a tokenizer that is here."""
    script = (ROOT / "scripts" / "examples" / "train_dpo.py").read_text()
    docstring = script.split('"""')[1].replace("\\\n", "")
    commands = [line.strip() for line in docstring.splitlines() if line.startswith("    ")]
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    tokenizer = save_tokenizer(tmp_path / "tokenizer", config=side)
    packprep, python = shlex.join(warm.command("packprep")), shlex.join(warm.command("python"))
    for command in commands:
        line = command.replace("qwen3", str(tokenizer))
        line = line.replace("python scripts/", f"{python} {ROOT}/scripts/")
        line = re.sub("^packprep ", lambda _: f"{packprep} ", line)
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
        done = subprocess.run(["bash", "-ec", line], cwd=tmp_path, **options)
        assert done.returncode == 0, done.stderr
    losses = losses_in(done.stdout)
    # Policy and reference are the same before the first step.
    assert losses[1] == pytest.approx(np.log(2), abs=1e-6)
    assert losses[max(losses)] < 0.1
    assert '"accuracy": 1.0' in done.stdout.splitlines()[-1]
