"""Trained tokens, computed in a slow and simple way.

Token by token, or from the rendered prefixes of transformers.
"""

from collections.abc import Sequence
from typing import Any


def trained_by_tokens(ids: Sequence[int], opening: Sequence[int], closing: int) -> list[bool]:
    """Mask of each run of tokens after `opening`, up to and including `closing`.

    Example: ids=[7, 1, 5, 9, 7], opening=[7, 1], closing=9 -> [False, False, True, True, False]
    """
    mask = [False] * len(ids)
    inside = False
    for place in range(len(ids)):
        if inside:
            mask[place] = True
            inside = ids[place] != closing
        elif list(ids[place + 1 - len(opening) : place + 1]) == list(opening) and place + 1 >= len(
            opening
        ):
            inside = True
    return mask


def trained_by_prefixes(
    tokenizer: Any, messages: list[dict[str, Any]], end: str, **options: Any
) -> list[bool]:
    """Mask by definition, from growing prefixes; fails if one is not a prefix of the text.

    tokenizer: of transformers. A token is trained if a character of it lies between the end of
    everything before a turn, rendered with the generation prompt, and the end of the next `end`.
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
        for place in range(len(before), upto.rindex(end) + len(end)):
            characters[place] = True
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    return [any(characters[start:stop]) for start, stop in encoding.offsets]


def special_ids_of_text(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The ids of special tokens, in order."""
    special = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return [id_ for id_ in ids if id_ in special]
