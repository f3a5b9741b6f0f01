"""Rows of a source, read and encoded again as in the build.

A source is opened only if its digest is right, and read up to the last wanted row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.chat.build_tokenizer import with_template
from packprep.chat.rendering.renderer import Renderer, load_renderer
from packprep.config.aliases import from_recorded, recorded_in
from packprep.config.build_config import BuildConfig
from packprep.config.grammar.source_names import HubPart
from packprep.config.recorded import first_defaults
from packprep.config.stages import STAGES, Cutting, Parsing, Running, Tokenizing
from packprep.engines.tokenizer import Special, Tokenizer, recorded_tokenizer
from packprep.inspect.coverage import Coverage
from packprep.inspect.moved import Moved
from packprep.schemas.columns import NO_LOSS, WHOLE_ROW
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.places import files_at
from packprep.sources.reading import plan_rows, read_rows
from packprep.sources.resolve import resolve
from packprep.sources.source import Source
from packprep.support.arrays import Int32
from packprep.support.errors import ConfigError
from packprep.tokens.encode import Encoder, load_encoder

# Options that decide which tokens of a text are in packs. A merged output keeps only those that all
# of its parts agree on.
SHAPING = recorded_in(Parsing, Tokenizing, Cutting) - {"num_packs"}


def recorded_config(
    manifest: Manifest, sources: Sequence[Mapping[str, object]] = ()
) -> BuildConfig:
    """The options of the build that shape tokens, for these of its sources.

    Raises ConfigError for an option that this packprep does not know.
    """
    options = dict(manifest.data["inputs"]["options"])
    options.pop("planner", None)
    if unknown := sorted(set(options) - recorded_in(*STAGES)):
        raise ConfigError(
            f"{MANIFEST} has the option {unknown[0]!r}, which this packprep does not know; use a "
            "newer one"
        )
    own = {"group_column": None, "group_prefix": None, "renderer": recorded_renderer(manifest)}
    options = {**options, "sources": sources}
    return BuildConfig(**first_defaults() | from_recorded(options) | own)


def recorded_renderer(manifest: Manifest) -> str | None:
    """Name of the renderer that the build had, for people: it is code, which no manifest names."""
    facts = manifest.data["inputs"]["tokenizer"].get(Renderer.FACT)
    return facts and str(manifest.run.get("given", {}).get("renderer", facts["function"]))


def find_encoder(
    coverage: Coverage, parsing: Parsing, tokenizing: Tokenizing, moved: Moved
) -> Encoder:
    """The reference encoder of the build's rows."""
    manifest = coverage.manifest
    if parsing.input_ids_column is not None:
        tokenizer = _of_ids(coverage, parsing)
    elif parsing.chats and moved.renderer is not None:
        tokenizer = _with_renderer(manifest, tokenizing, moved)
    elif parsing.chats and "chat_template" in manifest.data["inputs"]["tokenizer"]:
        tokenizer = _with_template(manifest, tokenizing, moved)
    else:
        is_pieced = parsing.segments_column is not None
        ends = tokenizing.asked_ends()
        ends = ends if is_pieced else {"bos": tokenizing.bos, "eos": tokenizing.eos}
        tokenizer = recorded_tokenizer(manifest, moved.tokenizer, root=moved.root, **ends)
    reference = replace(tokenizing, engine="hf")
    return load_encoder(tokenizer, parsing, reference, 0, Running().num_proc)


def _of_ids(coverage: Coverage, parsing: Parsing) -> Tokenizer:
    """The tokenizer of rows of token ids, of which only BOS and EOS are known."""
    bos, eos = (
        None if id_ is None else Special("", id_)
        for id_ in (coverage.policy.bos, coverage.policy.eos)
    )
    return Tokenizer(
        json=b"",
        sha256="",
        vocab_size=coverage.manifest.vocab_size,
        bos=bos,
        eos=eos,
        pad_id=0,
        boundary=_boundary(coverage.manifest, parsing),
    )


def _boundary(manifest: Manifest, parsing: Parsing) -> tuple[str, int] | None:
    """Kind and id of the token at which the build split rows. Raises FormatError if unknown."""
    if (boundary := parsing.boundary()) is None:
        return None
    token = manifest.data["inputs"]["tokenizer"].get("boundary")
    if type(token) is not int:
        raise FormatError(
            f"manifest.json has the boundary {token!r}; expected the id of the token at which rows "
            "were split"
        )
    return boundary[0], token


def _with_template(manifest: Manifest, tokenizing: Tokenizing, moved: Moved) -> Tokenizer:
    """The tokenizer with the chat template of the build. Raises ConfigError if it has another."""
    from packprep.chat.template import load_chat_template

    ends, root = {"bos": "none", "eos": "none"}, moved.root or ""
    tokenizer = recorded_tokenizer(manifest, moved.tokenizer, root=root, **ends)
    file = manifest.run.get("given", {}).get("chat_template")
    path = None if file is None else Path(root, file)
    template = load_chat_template(
        tokenizer, path, date=tokenizing.template_date, variables=tokenizing.variables()
    )
    if template.as_dict() != manifest.data["inputs"]["tokenizer"].get("chat_template"):
        where = path or "the tokenizer's chat template"
        raise ConfigError(
            f"{where} is not the chat template of this output; restore it to compare documents"
        )
    return with_template(tokenizer, template)


def _with_renderer(manifest: Manifest, tokenizing: Tokenizing, moved: Moved) -> Tokenizer:
    """The tokenizer with the renderer of the build. Raises ConfigError if it had another."""
    ends = {"bos": "none", "eos": "none"}
    tokenizer = recorded_tokenizer(manifest, moved.tokenizer, root=moved.root or "", **ends)
    renderer = load_renderer(str(moved.renderer), tokenizing.variables())
    if renderer.as_dict() != manifest.data["inputs"]["tokenizer"].get(Renderer.FACT):
        raise ConfigError(
            f"{renderer.name} is not the renderer of this output; restore it to compare documents"
        )
    return with_template(tokenizer, renderer)


def find_source(
    manifest: Manifest, number: int, name: str, root: str | Path | None, scratch: Path
) -> Source:
    """Find a source of the build. Raises ConfigError if it is missing or has changed."""
    recorded = manifest.data["inputs"]["sources"][number]
    if name == "standard input" and recorded.get("kind") == "json":
        raise ConfigError("standard input cannot be read again, so its documents were not compared")
    is_remote = recorded.get("kind") == "hub" or files_at(name).directory is None
    path = name if is_remote else str(Path(root or "", name))
    if not is_remote and not Path(path).exists():
        where = (
            ""
            if Path(name).is_absolute()
            else "; run in the folder of the build, or give that folder with --root"
        )
        raise ConfigError(f"the source {path} does not exist{where}")
    run = manifest.run.get("given", {})
    given = {key: run[key] for key in HubPart._fields if key in run}
    source = {"path": path, "given": given} | recorded.get("reading", {})
    config = recorded_config(manifest, [source])
    sources = resolve(config.reading, config.parsing, config.output, scratch)
    if len(sources) != 1 or sources[0].sha256 != recorded["sha256"]:
        raise ConfigError(
            f"the source {path} has changed since the build; its documents were not compared"
        )
    return sources[0]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document as a build encodes it.

    row: in its source. turn: -1 for a whole row. ids: with BOS and EOS. labels: int32 [tokens],
    before segments are cut. trains_all: rows have no labels, so every token is trained. split:
    tokens of the first side of a pair. aligned, values: carried columns, per token and per row.
    """

    row: int
    turn: int
    ids: Int32
    labels: Int32
    trains_all: bool
    split: int | None
    aligned: Mapping[str, NDArray[Any]]
    values: Mapping[str, np.generic]


def encoded_rows(
    source: Source, rows: NDArray[np.int64], encoder: Encoder, scratch: Path
) -> Iterator[Document]:
    """The documents of these rows, which ascend. A row without usable text has no ids."""
    stages = encoder.parsing, encoder.tokenizing
    [plan], _ = plan_rows([source], *stages, encoder.tokenizer, scratch)
    first = 0
    for table in read_rows(source, plan, scratch):
        begin, end = np.searchsorted(rows, [first, first + len(table)])
        if begin < end:
            text = table.drop_columns(["problem"]).take(rows[begin:end] - first)
            encoded = encoder.encode(text, rows[begin:end]).table
            yield from _documents(encoded, rows[begin:end], [each.name for each in plan.carried])
        first += len(table)
        if end == len(rows):
            return


def _documents(
    encoded: pa.Table, rows: NDArray[np.int64], carried: Sequence[str]
) -> Iterator[Document]:
    """The documents of a table of an encoder. rows: numbers of its rows in the source."""
    columns = {name: encoded[name] for name in encoded.column_names}
    lists = {name for name, column in columns.items() if pa.types.is_list(column.type)}
    numbers = {name: columns[name].to_numpy() for name in columns.keys() - lists}
    row_of = rows[numbers["turn_rows"]] if "turn_rows" in numbers else rows
    for place, row in enumerate(row_of.tolist()):
        of_tokens = {name: columns[name][place].values.to_numpy() for name in lists}
        labels, ids = of_tokens.get("labels"), of_tokens["tokens"].astype(np.int32)
        if labels is None:
            labels = ids
        elif labels.dtype == np.int8:
            labels = np.where(labels != 0, ids, NO_LOSS)
        yield Document(
            row=row,
            turn=int(numbers["turn_ids"][place]) if "turn_ids" in numbers else WHOLE_ROW,
            ids=ids,
            labels=labels,
            trains_all="labels" not in lists,
            split=int(numbers["pair_split"][place]) if "pair_split" in numbers else None,
            aligned={name: of_tokens[name] for name in carried if name in lists},
            values={name: numbers[name][place] for name in carried if name in numbers},
        )
