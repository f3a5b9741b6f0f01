"""Types of report.json, the account of a build, as report.schema.json describes it.

A report is a plain dict; `form_fault` compares one that was read with the schema. The types have
the keys that code names; a figure that only the table of figures names needs none.
"""

from typing import NotRequired, TypedDict

CountTable = dict[str, int]
"""A table of whole numbers; report.schema.json has its keys and what they count."""


class Ledger(TypedDict):
    """Tokens by what became of them: the equation that `check_ledger` checks.

    shared: only if rows share prefixes.
    """

    tokens_in: int
    overlap: int
    continuation_bos: int
    filler: int
    tokens_packed: int
    truncated: int
    dropped: CountTable
    shared: NotRequired[int]


class TotalLedger(Ledger):
    """The ledger of all sources, with the special tokens that the build added."""

    bos_added: int
    eos_added: int


# "in" is a keyword, so this one cannot be a class statement.
DocumentCounts = TypedDict(
    "DocumentCounts",
    {
        "in": int,
        "empty": int,
        "skipped": CountTable,
        "dropped": CountTable,
        "cut": int,
        "cut_characters": int,
    },
)
"""Documents by what became of them.

skipped: rows by reason. dropped: by reason. cut: documents with shortened text.
"""


class ReportLeftOut(TypedDict):
    """Text of messages that the chat template does not write.

    It is in no ledger, since it was never rendered. documents: rows with such text. characters,
    tokens: of the texts, encoded alone. fields: both, by field of the messages.
    """

    documents: int
    characters: int
    tokens: int
    fields: dict[str, CountTable]


class ReportNotRead(TypedDict):
    """What rows have that no option names and nothing reads; the empty parts are missing.

    columns: number of sources with each. keys: of messages, number of messages with each.
    """

    columns: NotRequired[CountTable]
    keys: NotRequired[CountTable]


class ReportWindow(TypedDict):
    """One window: the documents that were planned together, with the figures of its plan.

    epoch, phase, max_length: only if there are several epochs, or phases.
    """

    window: int
    split: str
    packs: int
    segments: int
    tokens: int
    bound: int
    gap: int
    epoch: NotRequired[int]
    phase: NotRequired[int]
    max_length: NotRequired[int]


class ReportFigures(TypedDict):
    """Figures of packs: of all, or of those of one epoch. Rows without labels have no loss."""

    packs: int
    segments: int
    utilization: float
    loss_tokens: NotRequired[int]
    bound: int
    gap: int
    bias: float
    straggler: float


class ReportEpoch(ReportFigures):
    """Figures of the packing of one epoch. Its tokens balance."""

    epoch: int
    tokens: Ledger


class SourceAccount(TypedDict):
    """The account of one input file, or of several.

    bos_rate, eos_rate: shares of the documents with tokens that begin with BOS and that end with
    EOS; older reports have none. left_out: if rows are conversations. turns: if turns may be
    documents.
    """

    documents: DocumentCounts
    tokens: Ledger
    segments: int
    bos_rate: NotRequired[float]
    eos_rate: NotRequired[float]
    left_out: NotRequired[ReportLeftOut]
    turns: NotRequired[CountTable]


class ReportSource(SourceAccount):
    """One input file. label: of its entry in the sources, if it has one."""

    name: str
    label: NotRequired[str]


class PhaseSource(TypedDict):
    """One source in a phase: the share of the training tokens asked for and achieved."""

    name: str
    asked_share: float
    share: float
    trained_tokens: int


class MixedSource(PhaseSource):
    """One source of a mix. asked: weight, epochs or max_tokens, or nothing.

    repeated: documents and tokens of copies beyond the first of each document.
    """

    asked: dict[str, float]
    epochs: float
    repeated: CountTable
    account: SourceAccount


class ReportMix(TypedDict):
    """Shares asked for and achieved. limited_by: the source that limits the size of the mix."""

    limited_by: str | None
    sources: list[MixedSource]


class ReportPhase(TypedDict):
    """One phase: what was asked for, and the account of its windows."""

    asked_tokens: int
    max_length: int
    min_len: int
    max_len: int | None
    splits: dict[str, CountTable]
    packs: int
    utilization: float
    tokens: Ledger
    sources: list[PhaseSource]


class SumFigures(ReportFigures):
    """The figures of a report that follow from sums over all sources and windows."""

    tokens: TotalLedger
    tokens_lost: int
    tokens_lost_share: float
    max_length: int
    gap_share: float
    loss_utilization: NotRequired[float]
    bos_rate: NotRequired[float]
    eos_rate: NotRequired[float]


class InputReport(SumFigures):
    """The part of a report that the inputs of the build decide.

    documents_per_pack: p50, p95 and max. splits: packs, segments and tokens of each. turns: rows of
    conversations, and the documents of their turns. groups_apart: groups of `group_prefix` with
    rows in several windows or splits, and all their rows.
    """

    report_version: int
    documents: DocumentCounts
    straggler_ranks: int
    documents_per_pack: CountTable
    splits: dict[str, CountTable]
    windows: list[ReportWindow]
    epochs: NotRequired[list[ReportEpoch]]
    sources: list[ReportSource]
    mix: NotRequired[ReportMix]
    phases: NotRequired[list[ReportPhase]]
    turns: NotRequired[CountTable]
    left_out: NotRequired[ReportLeftOut]
    left_out_example: NotRequired[str]
    left_out_in_turns: NotRequired[int]
    not_read: NotRequired[ReportNotRead]
    groups_apart: NotRequired[CountTable]


class ReportFiles(TypedDict):
    """Figures of report.json that depend on the bytes of the data files."""

    bytes: int
    shards: int
    sha256: str


class Report(InputReport, ReportFiles):
    """The whole of report.json: also its data files and the run that wrote them."""

    seconds: dict[str, float]
    tokens_per_second: float
    peak_memory_bytes: int
