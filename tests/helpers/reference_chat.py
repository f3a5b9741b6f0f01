"""Trained tokens, found the slow and obvious way.

Token by token, or by asking transformers where a prefix ends.
"""

from collections.abc import Sequence
from typing import Any


def trained_by_tokens(ids: Sequence[int], opening: Sequence[int], closing: int) -> list[bool]:
    """Each run of tokens from behind `opening` to `closing`, that token included.

    Example: ids=[7, 1, 5, 9, 7], opening=[7, 1], closing=9 -> [False, False, True, True, False]
    """
    mask = [False] * len(ids)
    inside = False
    for at in range(len(ids)):
        if inside:
            mask[at] = True
            inside = ids[at] != closing
        elif list(ids[at + 1 - len(opening) : at + 1]) == list(opening) and at + 1 >= len(opening):
            inside = True
    return mask


def trained_by_prefixes(
    tokenizer: Any, messages: list[dict[str, Any]], end: str, **options: Any
) -> list[bool]:
    """The definition itself, where growing prefixes are exact: fails where one is no prefix.

    tokenizer: of transformers. A token is trained if a character of it lies between the end of
    everything before a turn, rendered with the generation prompt, and the end of `end` behind it.
    """
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    characters = [False] * len(text)
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(
            messages[:turn], tokenize=False, add_generation_prompt=True, **options
        )
        upto = tokenizer.apply_chat_template(messages[: turn + 1], tokenize=False, **options)
        assert text.startswith(before)
        assert text.startswith(upto)
        for at in range(len(before), upto.rindex(end) + len(end)):
            characters[at] = True
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    return [any(characters[start:stop]) for start, stop in encoding.offsets]


def special_ids_of_text(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The ids that are a special token's, in order."""
    special = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return [id_ for id_ in ids if id_ in special]
