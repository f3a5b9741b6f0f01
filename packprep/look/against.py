"""`verify --against transformers`: encode rows again with its tokenizer and chat template.

Rows are read as in the build, and AutoTokenizer of the installed transformers gives their ids, and
what is trained, where the template says it by {% generation %}. Left out are messages that spell a
special token, which transformers would parse, and documents with a hole (truncate:balanced).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..chat.conversations import conversation_of, rows_of
from ..chat.documents import Rendered
from ..chat.template import CLOCK, ChatTemplate
from ..chat.types import BadRowError
from ..config.checks import kind_of_sides
from ..read.reading import read
from ..run.job import Job, make_job
from ..schemas.columns import FILLER, NO_LOSS, WHOLE
from ..schemas.manifest import Output, packs
from ..schemas.validate import Finding
from ..schemas.views import list_view, segments_of
from ..support.errors import ConfigError, InputError, brief
from ..support.progress import Progress
from ..tokens.store import is_store
from .rebuild import recorded_config

_PARTS = ("pair_sides", "turn_ids")


class Segment(NamedTuple):
    """A segment of a chosen row. tokens, labels: without padding and a repeated BOS."""

    part: int
    start: int
    tokens: NDArray[Any]
    labels: NDArray[Any]


Encoded = tuple[NDArray[Any], NDArray[Any] | None]
"""Ids of a document, and a mask of what is trained; None if nothing says it."""


def compare(
    output: Output, sample: int, progress: Progress, **changed: Any
) -> tuple[list[Finding], str]:
    """Compare so many rows, spread over the output; return what differs, and what was compared.

    changed: see `recorded_config`. Raises ConfigError for rows that transformers does not encode.
    """
    config, where = recorded_config(output, **changed), str(output.files)
    kind = "a store" if any(map(is_store, config.sources)) else kind_of_sides(config)
    lacks = {"document_ids", "document_starts"} - output.manifest.columns.keys()
    if lacks or kind not in ("text", "messages") or config.too_long.how == "balanced":
        raise ConfigError(
            f"{where} was built from {kind}; --against is for text and messages of files, with "
            "document_ids and document_starts, and not truncated in the middle"
        )
    with TemporaryDirectory(prefix="packprep-", ignore_cleanup_errors=True) as folder:
        job = make_job(replace(config, output=f"{folder}/out"), progress)
        if job.identity != output.manifest.identity:
            what = f"the sources or the tokenizer of {where} have changed since the build"
            return [Finding(kind="inputs", what=what)], ""
        if kind == "messages" and not isinstance(job.renderer.template, ChatTemplate):
            raise ConfigError(f"{where} was built without a Jinja template; --against needs one")
        return _compared(output, job, _chosen(output, sample))


def _compared(
    output: Output, job: Job, chosen: Mapping[int, Sequence[Segment]]
) -> tuple[list[Finding], str]:
    trainer, sources = _Trainer(job), output.manifest.data["sources"]
    found, counts, size = dict[str, list[str]](), Counter[str](), 0
    firsts = [source["first_row"] for source in sources]
    for row, side, value in _values(job, firsts, chosen):
        number = int(np.searchsorted(firsts, row, side="right")) - 1
        place = f"{sources[number]['name']} row {row - firsts[number]}"
        # The second of a pair begins after the first; -1: nothing says where.
        shift, size = size if side == 1 else 0, -1
        for part in sorted({each.part for each in chosen[row] if side in (WHOLE, each.part)}):
            encoded = trainer.encoded(value, part if side == WHOLE else WHOLE)
            if encoded is None or shift < 0:
                counts["left out"] += 1
                continue
            counts["documents"] += 1
            counts["labels"] += encoded[1] is not None
            size = len(encoded[0])
            for segment in (each for each in chosen[row] if each.part == part):
                for kind, what in _differences(segment, encoded, segment.start - shift):
                    found.setdefault(kind, []).append(f"{place}: {what}")
    words = f"ids of {counts['documents']:,} documents are those of {trainer.name}"
    words += f", labels of {counts['labels']:,} too" * (counts["labels"] > 0)
    if counts["left out"]:
        words += f"; {counts['left out']:,} that spell special tokens were left out"
    return [Finding(kind=k, what=each[0], count=len(each)) for k, each in found.items()], words


def _differences(segment: Segment, encoded: Encoded, first: int) -> Iterator[tuple[str, str]]:
    """Kind and words of what differs. first: token of the document with which it begins."""
    tokens, (ids, mask), last = segment.tokens, encoded, first + len(segment.tokens)
    expected = np.full(len(tokens), FILLER)
    expected[: max(len(ids) - first, 0)] = ids[first:last]
    compared = [("ids", tokens, expected)]
    if mask is not None and np.array_equal(tokens, expected):
        labels = np.where(mask[first:last], expected, NO_LOSS)
        labels[0] = NO_LOSS
        compared.append(("labels", segment.labels, labels))
    for kind, found, wanted in compared:
        for at in np.flatnonzero(found != wanted)[:1]:
            what = f"the packs have {found[at]} and transformers {wanted[at]}"
            yield f"other {kind}", f"at token {first + at} {what}"


def _chosen(output: Output, sample: int) -> dict[int, list[Segment]]:
    """The segments of so many rows, spread evenly over the input; of rows in no pack, none."""
    options = output.manifest.data["inputs"]["options"]
    count = sum(source["rows"] for source in output.manifest.data["sources"])
    rows = np.linspace(0, count, sample, endpoint=False).astype(np.int64)
    chosen: dict[int, list[Segment]] = {}
    for each in (each for split in output.manifest.splits for each in packs(output, split)):
        views = {n: list_view(each.batch, c.name, "") for n, c in output.manifest.columns.items()}
        _, _, starts, ends = segments_of(views, each.shard.path, each.first)
        values = {name: view.flat for name, view in views.items()}
        tokens, labels = values["tokens"], values.get("labels", values["tokens"])
        real = values.get("segment_lengths", ends - starts)
        parts = next((values[name] for name in _PARTS if name in values), None)
        for at in np.flatnonzero(np.isin(values["document_ids"], rows)).tolist():
            start = int(values["document_starts"][at])
            first, last = int(starts[at]), int(starts[at] + real[at])
            first += bool(options.get("continuation_bos")) and start > 0
            part = WHOLE if parts is None else int(parts[at])
            segment = Segment(part, start, tokens[first:last], labels[first:last])
            chosen.setdefault(int(values["document_ids"][at]), []).append(segment)
    return chosen


def _values(
    job: Job, firsts: Sequence[int], wanted: Mapping[int, Any]
) -> Iterator[tuple[int, int, Any]]:
    """Row, side (-1 but for pairs), and text or conversation of the wanted rows, in order.

    firsts: row of the build with which each source begins.
    """
    conversations: list[Any] = []

    def render(table: pa.Table, names: Sequence[str], pieces: bool = False) -> Rendered:
        for row in rows_of(table):
            conversations.append(None)
            with suppress(BadRowError):
                conversation = conversation_of(row, names)
                conversations[-1] = job.renderer.template.with_call_arguments(conversation)
        numbers = np.arange(len(conversations) - len(table), len(conversations))
        rows = np.arange(len(table), dtype=np.int32)
        made = {"row": rows, "part": np.full(len(rows), WHOLE, np.int32), "text": numbers}
        return Rendered(pa.table(made), {}, Counter(), Counter(), [])

    limits: dict[int | None, Any] = {source.entry: source.limit for source in job.sources}
    limits[None] = job.config.limit
    left: Any = {key: count for key, count in limits.items() if count is not None}
    seen = Counter[int]()
    for split in job.splits:
        for batch in read(split, job.sources, skips=True, left=left, render=render):
            first = firsts[batch.source] + seen[batch.source]
            seen[batch.source] += batch.rows
            for row in batch.documents.select(["row", "part", "text"]).to_pylist():
                if first + row["row"] in wanted:
                    text = row["text"]
                    value = text if isinstance(text, str) else conversations[text]
                    yield first + row["row"], row["part"], value
            conversations.clear()


class _Trainer:
    """AutoTokenizer of the installed transformers."""

    def __init__(self, job: Job) -> None:
        """Load it. Raises ConfigError without transformers, InputError if it cannot be loaded."""
        try:
            import transformers
        except ImportError:
            raise ConfigError("transformers is not installed; pip install transformers") from None
        self._job, config = job, job.config
        load = transformers.AutoTokenizer.from_pretrained
        name, _, revision = str(config.tokenizer).partition("@")
        try:
            place = str(Path(name).parent) if Path(name).is_file() else name
            self._tokenizer: Any = load(place, revision=revision or None)
        except Exception as error:  # of any kind
            said = " ".join(str(error).split())[:200]
            raise InputError(f"AutoTokenizer of transformers cannot load {name}: {said}") from None
        self.name = f"{type(self._tokenizer).__name__} of transformers {transformers.__version__}"
        self._template = config.chat_template and Path(config.chat_template).read_text("utf-8")

    def encoded(self, value: Any, part: int) -> Encoded | None:
        """A document; None if a message spells a special token, which transformers would parse.

        part: number of the message that a conversation ends with; -1 for all.
        """
        if isinstance(value, str):
            asked = {"add_special_tokens": False, "split_special_tokens": True}
            ids = self._tokenizer(value, **asked)["input_ids"]
            bos, eos = ([end] if end >= 0 else [] for end in self._job.tokenizer.end_ids)
            return np.array([*bos, *ids, *eos]), None
        messages, config = value.messages[: part + 1 or None], self._job.config
        text = json.dumps(messages, ensure_ascii=False)
        if any(special in text for special in self._tokenizer.get_added_vocab()):
            return None
        source = self._template or self._tokenizer.get_chat_template(tools=value.tools)
        masked = re.search(r"{%-?\s*generation", source) is not None
        variables = {**(config.template_variables or {}), **value.variables}
        if CLOCK in variables:
            day = variables[CLOCK]
            raise ConfigError(f"{self.name} writes today's date, not {day}; verify by --rebuild")
        options: dict[str, Any] = {"return_dict": True, "return_assistant_tokens_mask": masked}
        options |= {"tools": value.tools, "chat_template": self._template, **variables}
        try:
            made = self._tokenizer.apply_chat_template(messages, **options)
        except Exception as error:  # of a template, of any kind
            raise InputError(f"{self.name} cannot render a row: {brief(str(error))}") from None
        whole = part < 0 and not value.untrained and not config.stride
        known = masked and whole and config.train_on == "assistant"
        return np.array(made["input_ids"]), np.array(made["assistant_masks"]) if known else None
