"""Sums of trained tokens, and what is in places of no document, from the shards of an output."""

import threading
from collections import Counter
from contextlib import suppress

import numpy as np

from packprep.inspect.policy import Policy
from packprep.schemas.batch_view import BatchView
from packprep.schemas.columns import STANDARD_COLUMNS
from packprep.schemas.findings import Finding, Findings
from packprep.schemas.manifest import Manifest
from packprep.schemas.report import Report
from packprep.schemas.views import ranges_at

_LATER = "segments_column"  # manifests have it only if rows are pieces
_SAY_LABELS = ("messages_column", "prompt_column", "labels_column", "loss_mask_column")


class TrainedTokens:
    """Trained tokens of the batches read so far, from several threads; `finish` compares them."""

    def __init__(self, manifest: Manifest, policy: Policy) -> None:
        self._options = manifest.data["inputs"].get("options") or {}
        self._policy = policy
        self._counts: Counter[int] = Counter()  # by epoch
        self._due = 0  # if every token is trained that may be
        self._lock = threading.Lock()
        names = {column.name for column in manifest.columns}
        self._has_labels = "labels" in names
        says_all = {*_SAY_LABELS, "train_overlap"} <= self._options.keys() and policy.says_cuts
        self._trains_all = (
            says_all
            and not any(self._options.get(name) for name in (*_SAY_LABELS, _LATER))
            and (policy.stride == 0 or "document_starts" in names)
        )

    def add(self, view: BatchView, epoch: int) -> None:
        """Count a batch of an epoch."""
        labels = view.columns.get("labels")
        if labels is None:
            return
        count = len(labels) - view.unlabelled
        due = self._due_of(view) if self._trains_all else 0
        with self._lock:
            self._counts[epoch] += count
            self._due += due

    def _due_of(self, view: BatchView) -> int:
        """Tokens that have a label where no row says which ones have."""
        policy, head = self._policy, np.ones(len(view.starts), np.int64)
        if policy.stride and not self._options["train_overlap"]:
            bos = policy.continuation_bos and policy.bos is not None
            head[view.columns["document_starts"] > 0] = policy.stride + bos
        return int(np.maximum(view.real - head, 0).sum())

    def finish(self, report: Report, findings: Findings) -> None:
        """Compare the sums with report.json; of rows without labels, with their tokens."""
        if not self._has_labels or not self._parts_agree:
            return
        total = self._counts.total()
        pairs = {"": (report.get("loss_tokens"), total)}
        if self._trains_all and "loss_tokens" not in report:
            pairs[""] = (self._due, total)
        with suppress(AttributeError, KeyError, TypeError):  # no report; that is a finding already
            for figures in report.get("epochs", ()):
                epoch = figures["epoch"]
                pairs[f" in epoch {epoch}"] = (figures.get("loss_tokens"), self._counts[epoch])
        for where, (expected, count) in pairs.items():
            if isinstance(expected, int) and expected != count:
                what = f"{expected:,} tokens are trained{where}, the shards have {count:,} labels"
                findings.add(Finding(kind="trained tokens", file="report.json", what=what))

    @property
    def _parts_agree(self) -> bool:
        """False for a merge of rows with labels and rows without: a report sums only the former."""
        return self._options.keys() >= {*_SAY_LABELS}


def check_padding(view: BatchView, manifest: Manifest, findings: Findings) -> None:
    """Report padding with another id than that of padding, and carried values that are not 0."""
    begins = view.starts + np.clip(view.real, 0, view.ends - view.starts)
    if (begins == view.ends).all():
        return
    padding = ranges_at(begins, view.ends - begins)
    pad_id = (manifest.data["inputs"].get("tokenizer") or {}).get("pad_id")
    carried = [column for column in manifest.columns if column.name not in STANDARD_COLUMNS]
    expected = {column.name: 0 for column in carried if column.kind == "token"}
    if pad_id is not None:
        expected["tokens"] = pad_id
    for name, fill in expected.items():
        values = view.columns[name]

        def of_token(token: int, name: str = name, fill: int = fill) -> Finding:
            what = f"padding has {name} {view.columns[name][token]}; expected {fill}"
            return view.token(token, "padding", what)

        findings.many("padding", padding[values[padding] != fill], of_token)
    filler = np.flatnonzero(view.filler)
    for name in (column.name for column in carried if column.kind == "segment"):

        def of_segment(segment: int, name: str = name) -> Finding:
            what = f"filler has {name} {view.columns[name][segment]}; expected 0"
            return view.segment(segment, "padding", what)

        findings.many("padding", filler[view.columns[name][filler] != 0], of_segment)
