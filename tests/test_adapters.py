"""Fields of each trainer, by twins that write them segment by segment, and rows of other tools."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.torch_models import documents, skip_without, tiny_llama

skip_without("torch", "transformers")

import torch  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from packprep import loaders  # noqa: E402
from packprep.loaders import PackedBatch, batch_from_rows, to_padded  # noqa: E402

NO = -100
CONFIG = SimpleNamespace(sliding_window=3, layer_types=["full_attention", "sliding_attention"])
ADAPTERS: dict[str, dict[str, Any]] = {
    "to_hf": {},
    "to_trl": {},
    "to_axolotl": {},
    "to_llama_factory": {"mask_dtype": torch.float32},
    "to_hf_4d": {"config": CONFIG},
    "to_megatron": {},
    "to_olmo": {},
    "to_torchtitan": {"version": "0.3"},
    "to_torchtune": {"ignore_idx": -1},
}


class Segment(NamedTuple):
    """A segment of a batch. labels: unshifted. real: its tokens without its padding."""

    tokens: list[int]
    labels: list[int]
    real: int
    filler: bool


class Case(NamedTuple):
    """A batch, and its segments by pack."""

    batch: PackedBatch
    packs: list[list[Segment]]

    @property
    def segments(self) -> list[Segment]:
        return [segment for pack in self.packs for segment in pack]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Batches of a few packs, some of whose segments are padded or filler."""
    sizes = draw(
        st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    has_ids, has_lengths = draw(st.booleans()), draw(st.booleans())
    fillers = draw(st.sampled_from([st.booleans(), st.just(True)]))
    packs, token = list[list[Segment]](), 10
    for pack in sizes:
        made = []
        for length in pack:
            filler = has_ids and draw(fillers)
            real = draw(st.integers(1, length)) if has_lengths else length
            tokens = [*range(token, token + length)]
            labels = [NO] + [NO if each % 3 == 0 else each for each in tokens[1:]]
            made.append(Segment(tokens, labels, 0 if filler and has_lengths else real, filler))
            token += length
        packs.append(made)
    every = [segment for pack in packs for segment in pack]
    ends = np.cumsum([0, *(len(each.tokens) for each in every)]).astype(np.int32)
    every_label = np.array([label for each in every for label in each.labels])
    kind: Any = draw(st.sampled_from(["hf", "shifted"]))
    batch = PackedBatch(
        tokens=np.arange(10, token),
        position_ids=np.concatenate([np.arange(len(each.tokens)) for each in every]),
        cu_seqlens=ends,
        max_seqlen=max(len(each.tokens) for each in every),
        labels=np.roll(every_label, -1) if kind == "shifted" else every_label,
        label_kind=kind,
        pack_boundaries=np.cumsum([0, *map(sum, sizes)]).astype(np.int32),
    )
    if has_ids:
        batch.document_ids = np.array([-1 if s.filler else n for n, s in enumerate(every)])
    if has_lengths:
        batch.segment_lengths = np.array([each.real for each in every], np.int32)
    return Case(batch, packs)


def joined(values: list[list[int]]) -> list[int]:
    return [value for each in values for value in each]


def shifted(segment: Segment) -> list[int]:
    """Labels of the next token."""
    return [*segment.labels[1:], NO]


def seen(numbers: list[int], window: int | None = None) -> list[list[bool]]:
    """Whether a token sees another; those of number 0 see nothing."""
    return [
        [
            key <= query
            and (window is None or query - key < window)
            and numbers[query] == numbers[key] != 0
            for key in range(len(numbers))
        ]
        for query in range(len(numbers))
    ]


def plain(value: Any) -> Any:
    """Tensors as lists; an additive mask as True where it is 0."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim() == 4:
        assert {*value.flatten().tolist()} <= {0, torch.finfo(value.dtype).min}
        return (value == 0)[:, 0].tolist()
    return value.tolist()


def expected_fields(name: str, case: Case) -> Any:
    """What an adapter gives, from the segments."""
    segments = case.segments
    lengths = [len(each.tokens) for each in segments]
    ends = np.cumsum([0, *lengths]).tolist()
    tokens = [joined([each.tokens for each in segments])]
    positions = [joined([[*range(length)] for length in lengths])]
    labels = [joined([each.labels for each in segments])]
    following = [joined([shifted(each) for each in segments])]
    numbers = joined([[number] * length for number, length in enumerate(lengths)])
    real = [
        0 if each.filler or not each.real else number for number, each in enumerate(segments, 1)
    ]
    own = {"input_ids": tokens, "position_ids": positions, "labels": labels, "use_cache": False}
    if {*labels[0]} == {NO}:
        own["num_items_in_batch"] = 1
    flash = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
    flash |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    if name in ("to_hf", "to_trl"):
        return {**own, **flash, "seq_idx": [numbers]}
    if name == "to_axolotl":
        return own
    if name == "to_llama_factory":
        mask = joined([[each] * length for each, length in zip(real, lengths, strict=True)])
        return {**own, "attention_mask": [seen(mask)]}
    if name == "to_hf_4d":
        every = [each + 1 for each in numbers]
        masks = {"full_attention": [seen(every)], "sliding_attention": [seen(every, 3)]}
        return {**own, "seq_idx": [numbers], "attention_mask": masks}
    if name == "to_torchtune":
        hidden = [[-1 if each == NO else each for each in labels[0]]]
        fields = {"tokens": tokens, "input_pos": positions, "labels": hidden}
        return {**fields, "mask": [seen([each + 1 for each in numbers])]}
    if name == "to_torchtitan":
        return {"input": tokens, "positions": positions}, following
    if name == "to_olmo":
        sizes = {"doc_lens": [lengths], "max_doc_lens": [max(lengths)]}
        return {"input_ids": tokens, "labels": following, **sizes}
    trained = [[float(each != NO) for each in following[0]]]
    counted = ends
    params = {"qkv_format": "thd", "total_tokens": ends[-1]}
    if case.batch.segment_lengths is not None:
        params |= {"cu_seqlens_q_padded": ends, "cu_seqlens_kv_padded": ends}
        counted = np.cumsum([0, *(each.real for each in segments)]).tolist()
    params |= {"cu_seqlens_q": counted, "cu_seqlens_kv": counted}
    params |= {"max_seqlen_q": max(lengths), "max_seqlen_kv": max(lengths)}
    known = [[0 if each == NO else each for each in following[0]]]
    fields = {"tokens": tokens, "position_ids": positions, "labels": known}
    return {**fields, "loss_mask": trained, "packed_seq_params": params}


@pytest.mark.parametrize("name", ADAPTERS)
@given(case=cases())
def test_fields_are_those_written_segment_by_segment(name: str, case: Case) -> None:
    fields = getattr(loaders, name)(case.batch, **ADAPTERS[name])
    assert plain(fields) == expected_fields(name, case)
    types = {"cu_seq_lens_q": torch.int32, "doc_lens": torch.int32, "seq_idx": torch.int32}
    named = fields[0] if isinstance(fields, tuple) else fields
    for key, value in named.items():
        if isinstance(value, torch.Tensor) and not value.is_floating_point():
            usual = torch.int32 if "cu_seq" in key else torch.int64
            assert value.dtype in (types.get(key, usual), torch.bool)


@pytest.mark.parametrize("name", ["to_hf", "to_trl", "to_axolotl", "to_llama_factory", "to_hf_4d"])
def test_gradients_of_a_call_are_those_of_the_documents_alone(name: str) -> None:
    lengths = [37, 1, 50, 40]
    texts = documents(lengths)
    model = tiny_llama()
    batch = batch_from_rows([{"input_ids": joined(texts), "seq_lengths": lengths}]).torch()
    options = {"config": model.config} if name == "to_hf_4d" else ADAPTERS[name]
    packed = model(**getattr(loaders, name)(batch, **options)).loss * batch.num_items
    alone = torch.stack(
        [
            cross_entropy(
                model(input_ids=torch.tensor([text])).logits[0, :-1],
                torch.tensor(text[1:]),
                reduction="sum",
            )
            for text in texts
            if len(text) > 1
        ]
    ).sum()
    wanted, found = (torch.autograd.grad(loss, [*model.parameters()]) for loss in (alone, packed))
    scale = max(float(gradient.abs().max()) for gradient in wanted)
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).abs().max()) / scale < 1e-5


def padded(case: Case, options: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Rows of one length, a pack or a segment in each. Every column but the mask."""
    packs = list[list[tuple[Segment, int]]]()
    if options["rows"] == "packs":
        for segments in case.packs:
            while segments and (segments[-1].filler or not segments[-1].real):
                segments = segments[:-1]  # filler after the last document is padding of the row
            packs.append([(each, len(each.tokens)) for each in segments])
    else:
        real = [each for each in case.segments if each.real and not each.filler]
        packs = [[(each, each.real)] for each in real]
    longest = max(sum(length for _, length in pack) for pack in packs)
    longest = longest if options["padding"] == "longest" else options["padding"]
    multiple = options["pad_to_multiple_of"]
    width = max(-(-longest // multiple) * multiple, multiple)
    made: dict[str, list[list[int]]] = {
        name: [] for name in ("input_ids", "position_ids", "labels", "segment_ids")
    }
    for pack in packs:
        used, number, numbers = 0, 0, list[list[int]]()
        for each, length in pack:
            used, number = used + length, number + (not each.filler and each.real > 0)
            numbers.append([0 if each.filler or not each.real else number] * length)
        positions = joined([[*range(length)] for _, length in pack])
        if options["positions"] == "continue":
            positions = [*range(used)]
        rest = width - used
        after = [*range(rest)] if options["padding_positions"] == "restart" else [0] * rest
        made["input_ids"].append(joined([s.tokens[:n] for s, n in pack]) + [0] * rest)
        made["position_ids"].append(positions + after)
        made["labels"].append(joined([s.labels[:n] for s, n in pack]) + [NO] * rest)
        made["segment_ids"].append(joined(numbers) + [0] * rest)
    return made


MASKS: list[Any] = [(None, None), ("padding", None), ("segments", None), ("4d", None)]
MASKS += [(None, "padding"), (None, "segments"), ("segments", "padding")]


@given(case=cases(), data=st.data())
def test_rows_of_one_length_are_those_written_segment_by_segment(
    case: Case, data: st.DataObject
) -> None:
    mask: Any
    named: Any
    mask, named = data.draw(st.sampled_from(MASKS))
    options: dict[str, Any] = {
        "padding": data.draw(st.sampled_from(["longest", 30])),
        "rows": data.draw(st.sampled_from(["packs", "segments"])),
        "positions": data.draw(st.sampled_from(["restart", "continue"])),
        "padding_positions": data.draw(st.sampled_from(["restart", "zero"])),
        "pad_to_multiple_of": data.draw(st.integers(1, 4)),
    }
    if options["rows"] == "segments" and all(each.filler for each in case.segments):
        with pytest.raises(ValueError, match="only filler"):
            to_padded(case.batch, mask=mask, attention_mask=named, **options)
        return
    expected = padded(case, options)
    numbers = expected.pop("segment_ids")
    several = max(map(max, numbers)) > 1
    hidden = options["positions"] == "continue" and "segments" not in (mask, named)
    if several and (mask == "padding" or (hidden and mask != "4d")):
        with pytest.raises(ValueError, match="no model can tell them apart"):
            to_padded(case.batch, mask=mask, attention_mask=named, **options)
        return
    fields = plain(to_padded(case.batch, mask=mask, attention_mask=named, **options))
    assert fields.pop("use_cache") is False
    nothing = {*joined(expected["labels"])} == {NO}
    assert fields.pop("num_items_in_batch", None) == (1 if nothing else None)
    if mask == "segments":
        assert fields.pop("segment_ids") == numbers
    if mask == "4d":
        assert fields.pop("attention_mask") == [seen(row) for row in numbers]
    elif named == "segments":
        assert fields.pop("attention_mask") == numbers
    elif "padding" in (mask, named):
        assert fields.pop("attention_mask") == [[int(n > 0) for n in row] for row in numbers]
    assert fields == expected


@pytest.mark.parametrize("kind", ["eos", "bos", "positions"])
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=3),
    pad=st.sampled_from([None, 2, 0]),
)
def test_boundaries_and_padding_of_rows_of_other_tools_are_found(
    rows: list[list[int]], kind: Any, pad: int | None
) -> None:
    """Of ids from 0 to 3, where 2 ends or begins a document; or positions that restart."""
    given_rows, lengths, reals = [], list[int](), list[int]()
    for ids in rows:
        row: dict[str, Any] = {"input_ids": ids}
        if kind == "positions":
            row["position_ids"] = [at % 3 for at in range(len(ids))]
            begins = [at for at in range(1, len(ids)) if at % 3 == 0]
        elif kind == "bos":
            begins = [at for at in range(1, len(ids)) if ids[at] == 2]
        else:
            begins = [at for at in range(1, len(ids)) if ids[at - 1] == 2]
        real = len(ids)
        while pad is not None and real and ids[real - 1] == pad:
            real -= 1
        if kind == "eos" and pad == 2 and 0 < real < len(ids):
            real += 1  # the end of the last document
        for first, last in zip([0, *begins], [*begins, len(ids)], strict=True):
            lengths.append(last - first)
            reals.append(min(max(real - first, 0), last - first))
        given_rows.append(row)
    token = None if kind == "positions" else 2
    batch = batch_from_rows(given_rows, boundaries=kind, token=token, pad_token=pad)
    assert np.diff(batch.cu_seqlens).tolist() == lengths
    assert batch.position_ids.tolist() == joined([[*range(length)] for length in lengths])
    assert batch.tokens.tolist() == joined(rows)
    if reals == lengths:
        assert batch.segment_lengths is None
    else:
        assert batch.segment_lengths.tolist() == reals
    starts = np.cumsum([0, *lengths]).tolist()
    labels = [
        batch.tokens[start + at] if 0 < at < real else NO
        for start, length, real in zip(starts, lengths, reals, strict=False)
        for at in range(length)
    ]
    assert batch.labels.tolist() == labels


def test_rejected_sides_are_refused_and_given_without_labels() -> None:
    rows = [{"tokens": [1, 2, 3, 4], "cu_seqlens": [0, 2, 4], "pair_sides": [0, 1]}]
    for name, options in ADAPTERS.items():
        with pytest.raises(ValueError, match="rejected answers"):
            getattr(loaders, name)(rows, **options)
    with pytest.raises(ValueError, match="rejected answers"):
        to_padded(rows)
    fields = loaders.to_hf(rows, sides="both")
    assert "labels" not in fields
    assert fields["input_ids"].tolist() == [[1, 2, 3, 4]]


def test_documents_are_rows_of_a_block_mask() -> None:
    rows = [{"tokens": [*range(256)], "seq_lengths": [100, 156]}]
    place = torch.arange(256)
    back, first = place[:, None] - place, place < 100
    seen = loaders.to_flex_block_mask(rows, window=20).mask_mod(0, 0, place[:, None], place)
    assert torch.equal(seen, (first[:, None] == first) & (back >= 0) & (back <= 20))
    with pytest.raises(ValueError, match="expected '0"):
        loaders.to_torchtitan(rows, version="1")  # type: ignore[arg-type]
