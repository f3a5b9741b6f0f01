"""Sample data from the standard library of the running Python; nothing is downloaded.

Text, conversations, preference pairs and a tokenizer. Every Python of the same version gives the
same bytes.
"""

import ast
import importlib
import json
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from ..support.errors import InputError

VOCABULARY = 8192
_ENDS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
# ChatML with the tokenizer's own two special tokens around each turn.
_TEMPLATE = """\
{%- for message in messages %}
{{- bos_token + message.role + '\\n' }}
{%- if message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- bos_token + 'assistant\\n' }}
{%- endif %}
"""
_SYSTEM = (
    "You answer questions about the Python standard library with the words of its documentation. "
    "The module is `{}`."
)
_MOST = 900  # functions; a conversation is about one to three
_SKIPPED = {"site-packages", "dist-packages", "test"}
_TOOLS = {"idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo"}  # nobody asks about these


class Function(NamedTuple):
    """A public function. summary, details: of its docstring. place: where it is defined."""

    module: str
    signature: str
    name: str
    summary: str
    details: str
    place: str

    @property
    def words(self) -> str:
        """All of its docstring."""
        return "\n\n".join(filter(None, (self.summary, self.details)))


def sample_files() -> dict[str, bytes]:
    """Content of each file by its path in the folder. Raises InputError without the sources."""
    sources = _sources()
    found = list(_functions(sources))
    functions = found[:: max(1, -(-len(found) // _MOST))]
    config = _ENDS | {
        "pad_token": _ENDS["eos_token"],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
    return {
        "code.jsonl": _lines({"path": path, "text": text} for path, text in sources.items()),
        "prose.jsonl": _lines({"topic": topic, "text": text} for topic, text in _topics()),
        "chats.jsonl": _lines({"messages": messages} for messages in _chats(functions)),
        "pairs.jsonl": _lines(_pairs(functions)),
        "tokenizer/tokenizer.json": _trained([*sources.values()]),
        "tokenizer/tokenizer_config.json": json.dumps(config, indent=2).encode(),
    }


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _sources() -> dict[str, str]:
    """Text of every module of the standard library by its path, tests left out."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(library.rglob("*.py")) if not _SKIPPED & {*path.parts}]
    if library / "pydoc_data" / "topics.py" not in paths:
        raise InputError(
            f"{library} lacks sources of the standard library, which the sample is made of; use a "
            "Python that has all of them as files"
        )
    return {p.relative_to(library).as_posix(): p.read_text("utf-8", "replace") for p in paths}


def _topics() -> list[tuple[str, str]]:
    """Chapters of the language reference, as `help()` shows them."""
    return sorted(importlib.import_module("pydoc_data.topics").topics.items())


def _trained(texts: list[str]) -> bytes:
    """A byte-level BPE, so that every text has tokens and decodes to itself."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True) for token in _ENDS.values()],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str(pretty=True)).encode()


def _functions(sources: Mapping[str, str]) -> Iterator[Function]:
    """Public functions and methods with a docstring, in the order of the sources."""
    for path, text in sources.items():
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        if parts[0] in _TOOLS or any(part.startswith("_") for part in parts):
            continue
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):  # a template of a source is no source
            continue
        yield from _defined(body, ".".join(parts), path, "")


def _defined(body: Sequence[ast.stmt], module: str, path: str, inside: str) -> Iterator[Function]:
    """Functions of a module or class. inside: names of the classes around, each with a dot."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in (each for each in body if isinstance(each, kinds) and each.name[0] != "_"):
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body, module, path, f"{inside}{node.name}.")
            continue
        summary, _, details = (ast.get_docstring(node) or "").partition("\n\n")
        if summary:
            arguments, name = ast.unparse(node.args), f"{module}.{inside}{node.name}"
            place = f"{path}, line {node.lineno}: def {node.name}({arguments})"
            words = (" ".join(summary.split()), details.strip())
            yield Function(module, f"{name}({arguments})", name, *words, place)


def _chats(functions: Sequence[Function]) -> Iterator[list[dict[str, str]]]:
    """Conversations about one to three functions of a module, with two to six turns.

    One of four has no system message; one of five thinks before its last answer.
    """
    number = 0
    for _, group in groupby(functions, lambda function: function.module):
        members = [*group]
        while members:
            count = 1 + number % 3
            yield _conversation(members[:count], number)
            members, number = members[count:], number + 1


def _conversation(asked: Sequence[Function], number: int) -> list[dict[str, str]]:
    turns = list[tuple[str, str]]()
    for function in asked:
        question = f"And `{function.name}`?" if turns else f"What does `{function.name}` do?"
        turns.append((question, function.summary))
        if len(asked) < 3 and number % 2:
            turns.append(("How is it called?", f"```python\n{function.signature}\n```"))
        if len(asked) < 3 and function.details:
            turns.append(("Tell me more.", function.details))
    if len(turns) == 1:
        turns.append(("Where is it defined?", f"In {asked[0].place}."))
    roles = ("user", "assistant")
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(roles, turn, strict=True)
    ]
    if number % 5 == 0:
        messages[-1]["reasoning_content"] = f"It is defined in {asked[-1].place}."
    system = {"role": "system", "content": _SYSTEM.format(asked[0].module)}
    return [system, *messages] if number % 4 else messages


def _pairs(functions: Sequence[Function]) -> Iterator[dict[str, str]]:
    """Questions with the docstring that answers them, and that of a neighbour in the module."""
    for _, group in groupby(functions, lambda function: function.module):
        members = [*group]
        for function, other in zip(members, [*members[1:], members[0]], strict=True):
            if function.words != other.words:
                yield {
                    "prompt": f"What does `{function.signature}` do?",
                    "chosen": function.words,
                    "rejected": other.words,
                }
