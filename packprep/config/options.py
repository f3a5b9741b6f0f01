"""The options of a build, and the values derived from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from packprep.config import mix
from packprep.config.executors import EXECUTORS, MERGE
from packprep.config.fields import OptionFields
from packprep.config.option import Stage
from packprep.config.phases import LENGTHS, Phase, checked_phases
from packprep.support.errors import ConfigError, brief


class Options(OptionFields):
    """The fields of `BuildConfig`, and the values derived from them."""

    @property
    def chats(self) -> bool:
        """True if rows are conversations."""
        return self.input_ids_column is None and (
            self.messages_column is not None or self.prompt_column is not None
        )

    @property
    def splits_rows(self) -> bool:
        """True if a row may be several documents."""
        return self.turns != "row" or self.boundaries is not None

    @property
    def parses_special_tokens(self) -> bool:
        """True if special tokens in the text are parsed.

        In conversations the template writes them; turns.py makes sure that no others are parsed.
        """
        return self.parse_special_tokens or self.chats

    def variables(self) -> dict[str, Any]:
        """The variables of the chat template."""
        try:
            variables = json.loads(self.template_variables or "{}")
            if not isinstance(variables, dict):
                raise ValueError
        except (ValueError, RecursionError):
            value = brief(self.template_variables)
            raise ConfigError(
                f'template_variables is {value}, expected JSON such as {{"enable_thinking": false}}'
            ) from None
        return variables

    def boundary(self) -> tuple[str, int | None] | None:
        """Kind of `boundaries`, eos or bos, and the token, None for the tokenizer's own."""
        if self.boundaries is None:
            return None
        kind, _, token = self.boundaries.partition(":")
        if kind not in ("eos", "bos") or not (token.isdecimal() or self.boundaries == kind):
            raise ConfigError(
                f"boundaries is {brief(self.boundaries)}, expected eos or bos, or one of them with "
                "the id of the token, such as eos:2"
            )
        return kind, int(token) if token else None

    def cost(self) -> tuple[float, float]:
        """Coefficients (a, b) of the attention cost of a pack: a * tokens + b * sum(segment^2)."""
        try:
            linear, quadratic = (float(part) for part in self.attention_cost.split(","))
            if not (min(linear, quadratic) >= 0 and 0 < linear + quadratic < float("inf")):
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"attention_cost is {self.attention_cost!r}, expected two numbers of at least 0 "
                "such as 24576,1"
            ) from None
        return linear, quadratic

    @property
    def is_task(self) -> bool:
        """True if this command is one task of several, and another command signs off."""
        return EXECUTORS[self.executor].many_commands and self.task_index != MERGE

    def entries(self) -> tuple[mix.Entry, ...]:
        """One entry for each source, from `sources` and `weights`."""
        sources = cast("Sequence[str | Mapping[str, Any]]", self.sources)  # paths are text here
        weights = cast("Sequence[str]", self.weights)
        return mix.entries(sources, weights, self.max_epochs, PER_SOURCE, phased=bool(self.phases))

    def phase_list(self) -> tuple[Phase, ...]:
        """One entry for each of `phases`; empty for a build without phases."""
        if not self.phases:
            return ()
        entries = self.entries()
        return checked_phases(
            self.phases,
            [entry.label for entry in entries],
            [entry.weight for entry in entries],
            self.max_tokens,
            {name: getattr(self, name) for name in LENGTHS},
        )

    @property
    def is_mix(self) -> bool:
        """True if documents are drawn from the sources, rather than all of them taken once."""
        return bool(self.phases) or mix.is_mix(self.entries())

    @property
    def tokens_to_read(self) -> int | None:
        """Tokens after which no more text is read; None to read everything.

        A mix is drawn from all the text, so its max_tokens does not stop reading.
        """
        return None if self.is_mix else self.max_tokens


PER_SOURCE = tuple(spec.name for spec in fields(Options) if spec.metadata["per_source"])


def options_in(*stages: Stage) -> frozenset[str]:
    """Names of the options of these stages."""
    return frozenset(spec.name for spec in fields(Options) if spec.metadata["stage"] in stages)
