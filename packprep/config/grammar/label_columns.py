"""The columns that `labels_column` names: labels, a mask, or whichever of these the rows hold.

    NAME          decided by the first rows of each source, see sources/label_kinds.py
    NAME:labels   a label for each token id, -100 where there is no loss
    NAME:mask     0 or 1 for each token id, 1 where there is a loss
    A:labels+B:mask   both: a token has a loss only if both say so

NAME is two names with a comma for pairs. Earlier versions had `loss_mask_column` for masks, and
manifests record both options as these versions did.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

LossKind = Literal["labels", "mask"]


@dataclass(frozen=True)
class LabelColumns:
    """Names of columns, None for none. either: labels or a mask, as rows decide."""

    labels: str | None = None
    mask: str | None = None
    either: str | None = None

    @classmethod
    def parse(cls, value: str | None) -> "LabelColumns":
        """The columns of a value of `labels_column`."""
        if value is None:
            return cls()
        if value.endswith(":mask"):
            labels, both, mask = value.removesuffix(":mask").partition(":labels+")
            return cls(labels=labels, mask=mask) if both else cls(mask=labels)
        if value.endswith(":labels"):
            return cls(labels=value.removesuffix(":labels"))
        return cls(either=value)

    def __str__(self) -> str:
        named = {"labels": self.labels, "mask": self.mask}
        stated = [f"{name}:{kind}" for kind, name in named.items() if name is not None]
        return "+".join(stated) or self.either or ""

    @property
    def names(self) -> list[str]:
        """The names as they are written."""
        return [name for name in (self.labels, self.mask, self.either) if name is not None]

    @property
    def kind(self) -> LossKind | None:
        """The kind that is named; None for none or both."""
        if (self.labels is None) == (self.mask is None):
            return None
        return "labels" if self.mask is None else "mask"

    def of_kind(self, kind: LossKind | None) -> "LabelColumns":
        """The same, with `either` decided. None: undecided."""
        return self if None in (kind, self.either) else LabelColumns(**{str(kind): self.either})

    def recorded(self) -> dict[str, str | None]:
        """The options of earlier versions, which manifests record."""
        return {"labels_column": self.labels or self.either, "loss_mask_column": self.mask}


def with_label_kind(options: Mapping[str, Any], kind: LossKind | None) -> dict[str, Any]:
    """Options of a build or of a source, with the kind of each `labels_column` decided.

    In those that manifests record it is that of labels: masks have an option of their own there.
    """
    decided: dict[str, Any] = {}
    if isinstance(value := options.get("labels_column"), str):
        decided["labels_column"] = str(LabelColumns.parse(value).of_kind(kind))
    if isinstance(sources := options.get("sources"), (list, tuple)):
        decided["sources"] = [
            with_label_kind(source, kind) if isinstance(source, Mapping) else source
            for source in sources
        ]
    return {**options, **decided}


def recorded_labels(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a source as manifests record them."""
    if not isinstance(value := options.get("labels_column"), str):
        return {**options}
    named = LabelColumns.parse(value).recorded()
    rest = {key: each for key, each in options.items() if key != "labels_column"}
    return rest | {key: name for key, name in named.items() if name is not None}


def without_mask(value: str) -> str | None:
    """A value of `labels_column` without its mask; None if nothing is left."""
    return str(replace(LabelColumns.parse(value), mask=None)) or None


def labels_of_source(options: Mapping[str, Any], of_build: str | None) -> dict[str, str]:
    """`labels_column` of a source that has its own.

    A kind that it does not name is that of the build.
    """
    if not isinstance(value := options.get("labels_column"), str):
        return {}
    own, build = LabelColumns.parse(value), LabelColumns.parse(of_build)
    if None in (build.labels, build.mask) or own.either is not None:
        return {"labels_column": value}
    both = LabelColumns(labels=own.labels or build.labels, mask=own.mask or build.mask)
    return {"labels_column": str(both)}


def labels_fit(options: Mapping[str, Any], of_build: str | None) -> bool:
    """True if a source and the build have columns of the same kinds, as far as they are known."""
    if not isinstance(value := options.get("labels_column"), str):
        return True
    own, build = LabelColumns.parse(value), LabelColumns.parse(of_build)
    return None not in (own.either, build.either) or (
        (own.labels is None or build.labels is not None)
        and (own.mask is None or build.mask is not None)
    )
