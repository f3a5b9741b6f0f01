"""Builds whose tokens are characters, so that a test reads text and what is trained of it."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from packprep import BuildConfig, build
from packprep.loaders import PackedShards

from .corpus import write_jsonl


class Document(NamedTuple):
    """A document of a build.

    row: of the source. turn: message that is trained, -1 for a whole row. trained: the trained
    texts; all of `text` in a build without labels.
    """

    row: int
    turn: int
    text: str
    trained: list[str]


def save_characters(folder: Path, template: str, specials: Iterable[str]) -> Path:
    """Save a tokenizer with a chat template as a directory.

    Every character is a token, and each of the special tokens.
    """
    signs = [chr(code) for code in range(9, 127)]
    signs += sorted({sign for sign in template if ord(sign) > 126})
    vocabulary = {sign: number for number, sign in enumerate(["<unk>", *signs])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.add_special_tokens(sorted({*specials, "<s>", "</s>"}))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def documents_of(
    folder: Path, rows: Sequence[Any], *, tokenizer: Path, **options: Any
) -> list[Document]:
    """The documents of a build of these rows, in their order; rows that are refused have none."""
    source = write_jsonl(folder / "rows.jsonl", rows)
    output = folder / f"out{sum(1 for _ in folder.glob('out*'))}"
    fixed: dict[str, Any] = {
        "max_length": 1 << 15,
        "overflow": "error",
        "order": "input",
        "engine": "hf",
    }
    build(
        BuildConfig(
            sources=(str(source),),
            output=str(output),
            tokenizer=str(tokenizer),
            **fixed | options,
        )
    )
    vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab()
    signs_of = {token: sign for sign, token in vocabulary.items()}
    found = []
    for pack in PackedShards(output):
        labels = pack.tokens if pack.labels is None else pack.labels
        turns = pack.columns.get("turn_ids")
        for number, (row, _, tokens) in enumerate(pack.segments()):
            assert row is not None
            start = int(pack.cu_seqlens[number])
            on = (labels[start : start + len(tokens)] != -100).tolist()
            signs = [signs_of[token] for token in tokens.tolist()]
            pairs = groupby(zip(on, signs, strict=True), key=lambda pair: pair[0])
            trained = ["".join(each for _, each in run) for is_on, run in pairs if is_on]
            turn = -1 if turns is None else int(turns[number])
            found.append(Document(row, turn, "".join(signs), trained))
    return found
