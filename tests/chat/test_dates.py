"""A build reads no clock, and says of a template's date only what is so."""

from pathlib import Path

import pytest

from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.errors import assert_says

MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
LOOP = (
    "{% for m in messages %}{{ '<s>' + m.role + '\n' + m.content + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
NOW = "{{ strftime_now('%d %b %Y') }}"
GUARDED = "{% if strftime_now is defined %}" + NOW + "{% else %}26 Jul 2024{% endif %}"
LLAMA = (
    "{% if not date_string is defined %}{% if strftime_now is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% else %}"
    "{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}{{ date_string }}"
)
DEFAULT, ASKED, SILENT = "default date", "--template-date YYYY-MM-DD; ", ""
CASES = {
    "guarded": (GUARDED, [], DEFAULT),
    "guarded by truth": (
        "{% if strftime_now %}" + NOW + "{% else %}long ago{% endif %}", [], DEFAULT),
    "the guard of Llama": (LLAMA, [], DEFAULT),
    "guarded, beside tools only": ("{% if tools %}" + GUARDED + "{% endif %}", [], DEFAULT),
    "guarded, beside a system message only": (
        "{% if messages[0].role == 'system' %}" + GUARDED + "{% endif %}", [], DEFAULT),
    "the date is given as a variable": (
        LLAMA, ["--template-variables", '{"date_string": "1 Jan 2025"}'], SILENT),
    "no default": (NOW, [], ASKED),
    "no default, in a macro": ("{% macro day() %}" + NOW + "{% endmacro %}{{ day() }}", [], ASKED),
    "a guard without a default": (
        "{% if strftime_now is defined %}{% set a = 1 %}{% endif %}" + NOW, [], ASKED),
    "never asked": ("{% if never %}" + NOW + "{% endif %}", [], SILENT),
    "a word in a text": ("{{ 'strftime_now' }}", [], SILENT),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_default_is_named_where_there_is_one_and_a_date_asked_for_where_not(
    tmp_path: Path, case: str
) -> None:
    source, options, expected = CASES[case]
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": source + LOOP}
    tokenizer = save_tokenizer(tmp_path / "tokenizer", config=config)
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"messages": MESSAGES}])
    line = ["build", rows, "--tokenizer", tokenizer, "--messages-column", "messages"]
    line += ["--max-length", "128", "--engine", "hf", *options]
    result = run(*line, "-o", tmp_path / "out")
    assert result.code == (2 if expected == ASKED else 0), result.err
    said = {words for words in (DEFAULT, ASKED) if words in result.err}
    assert said == ({expected} if expected else set())
    if expected == ASKED:
        assert_says(result.err, "rows.jsonl row 0", "today's date")
    dated = run(*line, "-o", tmp_path / "dated", "--template-date", "2026-01-31")
    assert dated.code == 0, dated.err
    assert "today's date" not in dated.err
