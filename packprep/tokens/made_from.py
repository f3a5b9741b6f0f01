"""Inputs that the tokens of an entry were made from, to pack them without their text.

made_from.json of an entry has the options of the text, the tokenizer and the sources. A build that
is given these would make the same token files, so packing them writes the bytes of that build.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from packprep.chat.build_tokenizer import ChatTokenizer, with_template
from packprep.chat.rendering.renderer import Renderer
from packprep.config.verbs import OF_TEXT
from packprep.engines.tokenizer import Tokenizer
from packprep.schemas.canonical import digest_of, parse_json
from packprep.schemas.storage.writing import write_file
from packprep.sources.source import Source
from packprep.support.errors import InputError
from packprep.support.from_json import from_json
from packprep.support.redact import redacted, redacted_source
from packprep.tokens.store import OF_ITSELF, with_digest

if TYPE_CHECKING:
    from packprep.config.build_config import BuildConfig

MADE_FROM = "made_from.json"
# By digest, while one is in use: the entries of a store share a tokenizer of megabytes.
_tokenizers: WeakValueDictionary[str, Tokenizer] = WeakValueDictionary()


@dataclass(frozen=True, kw_only=True)
class MadeFrom:
    """Content of made_from.json.

    options: of the text, by name, as `BuildConfig` takes them. sources: without their paths.
    """

    options: Mapping[str, Any]
    tokenizer: Tokenizer
    sources: Sequence[Source]

    @classmethod
    def of(
        cls, config: "BuildConfig", tokenizer: Tokenizer, sources: Sequence[Source]
    ) -> "MadeFrom":
        """Of a build. Names have no credentials; a tokenizer that was an object has no name."""
        options = {name: getattr(config, name) for name in sorted(OF_TEXT)}
        name = redacted(config.tokenizer) if isinstance(config.tokenizer, str) else None
        typed = cast("Sequence[str | Mapping[str, object]]", config.sources)  # paths are text here
        read = sorted({source.entry for source in sources})
        named = [redacted_source(typed[entry]) for entry in read]
        return cls(
            options=options | {"sources": named, "tokenizer": name},
            tokenizer=tokenizer,
            sources=[replace(source, entry=read.index(source.entry)) for source in sources],
        )

    def write(self, entry: Path) -> None:
        """Write made_from.json unless it is there."""
        if (entry / MADE_FROM).exists():
            return
        content: dict[str, object] = {
            "options": self.options,
            "tokenizer": tokenizer_facts(self.tokenizer),
            "sources": [_facts(source) for source in self.sources],
        }
        write_file(entry / MADE_FROM, with_digest(content))


def _facts(source: Source) -> dict[str, object]:
    """A source as JSON has it, without its place and without what decides no token."""
    facts = asdict(source) | {"path": None, "files": []}
    del facts["skip_rows"], facts["max_window"]
    return facts


def read_made_from(entry: Path) -> MadeFrom:
    """Read made_from.json of an entry. Raises InputError if it is missing or damaged."""
    path = entry / MADE_FROM
    try:
        facts = parse_json(path.read_bytes())
        if facts.pop(OF_ITSELF) != digest_of(facts):
            raise ValueError("it has changed since it was written")
        return MadeFrom(
            options=facts["options"],
            tokenizer=_tokenizer(facts["tokenizer"]),
            sources=[from_json(Source, source) for source in facts["sources"]],
        )
    except FileNotFoundError:
        raise InputError(
            f"{entry} has no {MADE_FROM}: an earlier packprep made it; run the command that made "
            "it again, which keeps its tokens and writes the file"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read: {error}; delete it, and run the command that made {entry} "
            "again, which writes it"
        ) from None


def _tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `tokenizer_facts` wrote: the one in use, if it was read before."""
    digest = digest_of(facts)
    if (known := _tokenizers.get(digest)) is None:
        known = _tokenizers[digest] = tokenizer_of(facts)
    return known


def tokenizer_facts(tokenizer: Tokenizer) -> dict[str, object]:
    """A tokenizer as JSON has it, for `tokenizer_of`."""
    facts = asdict(tokenizer) | {"json": tokenizer.json.decode()}
    template = facts.pop("template", None)
    if isinstance(tokenizer, ChatTokenizer) and isinstance(tokenizer.template, Renderer):
        return {"tokenizer": facts, "template": None, "renderer": template}
    return {"tokenizer": facts, "template": template}


def tokenizer_of(facts: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `tokenizer_facts` wrote. A renderer is not loaded before it is called."""
    tokenizer = from_json(Tokenizer, facts["tokenizer"])
    if "renderer" in facts:
        return with_template(tokenizer, from_json(Renderer, facts["renderer"]))
    if facts["template"] is None:
        return tokenizer
    from packprep.chat.template import ChatTemplate

    return with_template(tokenizer, from_json(ChatTemplate, facts["template"]))
