"""Sample data from the standard library of the running Python.

Text, conversations, preference pairs and a tokenizer. Nothing is downloaded, and the modules are
read, not imported. Every Python of the same version gives the same bytes.
"""

import ast
import importlib
import json
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from packprep.support.errors import InputError

VOCABULARY = 8192
ENDS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
CHAT_TEMPLATE = """\
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
"""ChatML with the tokenizer's own two special tokens around each turn."""

SYSTEM = (
    "You answer questions about the Python standard library with the words of its documentation."
)
_MOST_FUNCTIONS = 900  # conversations of one to three functions each: some hundreds
_SKIPPED = {"site-packages", "dist-packages", "test"}
_TOOLS = {"idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo"}  # nobody asks about these


class Function(NamedTuple):
    """A documented public function.

    name: with module and class.
    signature: as a call.
    summary, details: of its docstring.
    line: where it is defined, as "path, line n: def ...".
    """

    module: str
    name: str
    signature: str
    summary: str
    details: str
    line: str


def sample_files() -> dict[str, bytes]:
    """Content of each file by its path in the folder. Raises InputError without the sources."""
    sources = _sources()
    functions = _spread(list(_functions(sources)), _MOST_FUNCTIONS)
    config = ENDS | {
        "pad_token": ENDS["eos_token"],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "code.jsonl": _lines({"path": path, "text": text} for path, text in sources.items()),
        "prose.jsonl": _lines({"topic": topic, "text": text} for topic, text in _topics()),
        "chats.jsonl": _lines({"messages": messages} for messages in _chats(functions)),
        "pairs.jsonl": _lines(_pairs(functions)),
        "tokenizer/tokenizer.json": _train(list(sources.values())),
        "tokenizer/tokenizer_config.json": json.dumps(config, indent=2).encode(),
    }


def _lines(rows: Iterable[Mapping[str, object]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _sources() -> dict[str, str]:
    """Text of every module of the standard library by its path, tests left out."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(library.rglob("*.py")) if not _SKIPPED & set(path.parts)]
    if not paths:
        raise InputError(
            f"{library} holds no Python sources, which the sample is made of; use a Python that is "
            "installed with its standard library as files"
        )
    return {
        path.relative_to(library).as_posix(): path.read_text("utf-8", "replace") for path in paths
    }


def _topics() -> list[tuple[str, str]]:
    """Chapters of the language reference, as `help()` shows them."""
    try:
        topics: Mapping[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise InputError(
            "this Python has no module pydoc_data.topics, which the sample's prose is made of; "
            "install the whole standard library"
        ) from None
    return sorted(topics.items())


def _train(texts: list[str]) -> bytes:
    """A byte-level BPE, so that every text has tokens and decodes to itself."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True) for token in ENDS.values()],
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
            tree = ast.parse(text)
        except (SyntaxError, ValueError):  # a template of a source is no source
            continue
        yield from _defined(tree.body, ".".join(parts), path, ())


def _defined(
    body: Sequence[ast.stmt], module: str, path: str, classes: tuple[str, ...]
) -> Iterator[Function]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from _defined(node.body, module, path, (*classes, node.name))
            continue
        summary, _, details = (ast.get_docstring(node) or "").partition("\n\n")
        if not summary:
            continue
        name = ".".join([module, *classes, node.name])
        arguments = ast.unparse(node.args)
        yield Function(
            module,
            name,
            f"{name}({arguments})",
            " ".join(summary.split()),
            details.strip(),
            f"{path}, line {node.lineno}: def {node.name}({arguments})",
        )


def _spread(functions: Sequence[Function], most: int) -> list[Function]:
    """At most so many, evenly from all modules."""
    step = max(1, -(-len(functions) // most))
    return list(functions[::step])


def _chats(functions: Sequence[Function]) -> Iterator[list[dict[str, str]]]:
    """Conversations about one to three functions of a module, with two to six turns.

    One of four has no system message; one of five thinks before its last answer.
    """
    number = 0
    for module, group in groupby(functions, lambda function: function.module):
        members = list(group)
        while members:
            asked, members = members[: 1 + number % 3], members[1 + number % 3 :]
            yield _conversation(module, asked, number)
            number += 1


def _conversation(module: str, asked: Sequence[Function], number: int) -> list[dict[str, str]]:
    turns = []
    for place, function in enumerate(asked):
        question = f"What does `{function.name}` do?"
        turns.append((question if not place else f"And `{function.name}`?", function.summary))
        if len(asked) < 3 and number % 2:
            turns.append(("How is it called?", f"```python\n{function.signature}\n```"))
        if len(asked) < 3 and function.details:
            turns.append(("Tell me more.", function.details))
    if len(turns) == 1:
        turns.append(("Where is it defined?", f"In {asked[0].line}."))
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    if number % 5 == 0:
        messages[-1]["reasoning_content"] = f"It is defined in {asked[-1].line}."
    if number % 4:
        messages.insert(0, {"role": "system", "content": f"{SYSTEM} The module is `{module}`."})
    return messages


def _pairs(functions: Sequence[Function]) -> Iterator[dict[str, str]]:
    """Questions with the docstring that answers them, and that of a neighbour in the module."""
    for _, group in groupby(functions, lambda function: function.module):
        members = list(group)
        for function, other in zip(members, [*members[1:], members[0]], strict=True):
            chosen, rejected = (
                "\n\n".join(filter(None, (each.summary, each.details)))
                for each in (function, other)
            )
            if chosen != rejected:
                yield {
                    "prompt": f"What does `{function.signature}` do?",
                    "chosen": chosen,
                    "rejected": rejected,
                }
