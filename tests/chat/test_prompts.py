"""Prompts that are messages: what they hold is never trained, whatever their answers are."""

from pathlib import Path
from typing import Any

import pytest

from packprep import PackprepError
from tests.helpers.characters import Document, documents_of
from tests.helpers.errors import refused

from .test_public_templates import TAKE_PARTS, answer, calling, public_templates, saved, user
from .test_turns import CHATML, FORGETS

BLOCKS = CHATML.replace(
    "{{ m.content }}<|im_end|>",
    "{% if m.role == 'assistant' %}{% generation %}{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}<|im_end|>"
    "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}",
)
CALLED = CHATML.replace(
    "{{ m.content }}",
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}",
)
PROMPTED = {"prompt_column": "prompt", "response_column": "completion"}
HISTORY = [user("One?"), answer("old", "hm"), user("Two?")]
SHOTS = [user("1+1"), answer("2"), user("2+2"), answer("4"), user("3+3")]
CALLING = calling({"city": "Oslo"})
RESULT = CALLING[2]
ROWS: dict[str, tuple[Any, Any, list[str]]] = {
    "history": (HISTORY, [answer("new")], ["new<|im_end|>"]),
    "shots, and a text": (SHOTS, "6", ["6<|im_end|>"]),
    "a call in the prompt": (CALLING[:3], CALLING[3:], ["It is.<|im_end|>"]),
    "an answer first": ([answer("old"), user("One?")], [answer("new")], ["new<|im_end|>"]),
    "a blank answer": ([user("One?"), answer(""), user("Two?")], "new", ["new<|im_end|>"]),
    "several answers": (
        HISTORY,
        [answer("new"), user("Three?"), answer("newer")],
        ["new<|im_end|>", "newer<|im_end|>"],
    ),
    "one taken out": (
        HISTORY,
        [answer("new", train=False), user("Three?"), answer("newer")],
        ["newer<|im_end|>"],
    ),
    "weighed in the prompt": (
        [user("One?"), answer("old", weight=1), user("Two?")],
        "new",
        ["new<|im_end|>"],
    ),
}


def trained(made: list[Document]) -> list[list[str]]:
    """Trained texts of each row."""
    rows = sorted({each.row for each in made})
    return [[text for each in made if each.row == row for text in each.trained] for row in rows]


@pytest.mark.parametrize("turns", ["row", "each", "auto"])
@pytest.mark.parametrize("template", [CALLED, BLOCKS, FORGETS], ids=["marks", "blocks", "forgets"])
def test_answers_in_a_prompt_are_not_trained(tmp_path: Path, template: str, turns: str) -> None:
    rows = [{"prompt": prompt, "completion": response} for prompt, response, _ in ROWS.values()]
    made = documents_of(
        tmp_path, rows, tokenizer=saved(tmp_path, template), turns=turns, **PROMPTED
    )
    nothing = "<think>\n\n</think>\n\n"  # FORGETS writes it in the last turns
    found = [[text.removeprefix(nothing) for text in texts] for texts in trained(made)]
    assert found == [expected for *_, expected in ROWS.values()]
    if turns == "auto":  # what a template drops of a prompt was not to be trained
        assert {each.turn for each in made} == {-1}


@pytest.mark.parametrize("template", [CALLED, BLOCKS], ids=["marks", "blocks"])
def test_only_the_last_turn_is_trained_where_it_is_asked_for(tmp_path: Path, template: str) -> None:
    rows = [{"prompt": prompt, "completion": response} for prompt, response, _ in ROWS.values()]
    options = PROMPTED | {"train_on": "last-turn"}
    made = documents_of(tmp_path, rows, tokenizer=saved(tmp_path, template), **options)
    assert trained(made) == [expected[-1:] for *_, expected in ROWS.values()]


def test_columns_that_are_found_and_sides_of_pairs_have_prompts_too(tmp_path: Path) -> None:
    folder = saved(tmp_path, CHATML)
    row = {"prompt": HISTORY, "completion": [answer("new")]}
    made = documents_of(tmp_path, [row], tokenizer=folder, messages_column="auto")
    assert trained(made) == [["new<|im_end|>"]]
    sides = {"prompt": SHOTS, "chosen": [answer("6")], "rejected": "7"}
    options: dict[str, Any] = {"prompt_column": "prompt", "overflow": "drop"}
    options |= {"pair_columns": ("chosen", "rejected")}
    made = documents_of(tmp_path, [sides], tokenizer=folder, **options)
    assert [each.trained for each in made] == [["6<|im_end|>"], ["7<|im_end|>"]]


def test_everything_is_trained_where_it_is_asked_for(tmp_path: Path) -> None:
    row = {"prompt": HISTORY, "completion": [answer("new", train=False)]}
    options: dict[str, Any] = {"tokenizer": saved(tmp_path, CHATML), "train_on": "all"} | PROMPTED
    with refused(PackprepError, "rows.jsonl row 0", "the row takes message 3 out of"):
        documents_of(tmp_path, [row], **options)
    [made] = documents_of(tmp_path, [row | {"completion": "new"}], **options)
    assert made.trained == [made.text]


def test_a_renderer_gets_the_answers_of_a_prompt_as_untrained(tmp_path: Path) -> None:
    (tmp_path / "pieces.py").write_text(
        "def render(messages, tools):\n"
        "    on = lambda m: m['role'] == 'assistant' and m.get('train', True)\n"
        "    return [{'text': m['content'] + ';', 'train': on(m)} for m in messages]\n"
    )
    row = {"prompt": SHOTS, "completion": [answer("6")]}
    options = PROMPTED | {"renderer": f"{tmp_path}/pieces.py:render"}
    [made] = documents_of(tmp_path, [row], tokenizer=saved(tmp_path, CHATML), **options)
    assert (made.text, made.trained) == ("1+1;2;2+2;4;3+3;6;", ["6;"])


def test_a_block_of_prompt_and_response_is_refused(tmp_path: Path) -> None:
    """A template puts both into one block, or leaves out the last message of the prompt."""
    inside = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>"
    together = "{% generation %}" + inside + "{% endgeneration %}"
    row: dict[str, Any] = {"prompt": HISTORY, "completion": [answer("new")]}
    with refused(PackprepError, "rows.jsonl row 0", "has message 0, which is not trained"):
        documents_of(tmp_path, [row], tokenizer=saved(tmp_path, together), **PROMPTED)
    without = BLOCKS.replace("in messages", "in messages if m.role != 'tool'", 1)
    row = {"prompt": CALLING[:3], "completion": "new"}
    with refused(PackprepError, "rows.jsonl row 0", "the template leaves out message 2"):
        documents_of(tmp_path, [row], tokenizer=saved(tmp_path, without), **PROMPTED)


@pytest.mark.parametrize("path", public_templates())
def test_public_templates_train_no_answer_of_a_prompt(tmp_path: Path, path: Path) -> None:
    rows = [
        {"prompt": [user("One?"), answer("Olden.", "hm"), user("Two?")], "completion": "Newest."},
        {"prompt": CALLING[:3], "completion": [answer("Newest.")]},
        {"prompt": [user("One?"), answer("Olden."), user("Two?")], "completion": "Newest."},
    ]
    folder, checked = saved(tmp_path, path.read_text()), 0
    options = PROMPTED | {"on_error": "skip", "template_date": "2026-01-31"}
    for more in ({"turns": "row"}, {"turns": "each"}, {"train_on": "last-turn"}):
        try:
            made = documents_of(tmp_path, rows, tokenizer=folder, **options | more)
        except PackprepError:  # all rows are refused
            continue
        for each in made:
            text = "".join(each.trained)
            assert "Newest." in text or "Newest." not in each.text
            assert not any(old in text for old in ("Olden.", "hm", "Oslo", "-8", "?"))
            checked += "Newest." in text
    assert checked or path.stem in TAKE_PARTS
