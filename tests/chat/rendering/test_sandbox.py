from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from packprep.chat.rendering.sandbox import MAX_STEPS, Sandbox
from packprep.chat.rendering.value_limits import MAX_SIZE, LimitError


def render(source: str, marked: bool = False, **variables: Any) -> str:
    sandbox = Sandbox("|")
    return sandbox.render(sandbox.from_string(source), variables, marked=marked)


def test_blocks_leave_no_lines_and_json_is_not_escaped_for_html() -> None:
    source = "{% for x in xs %}\n  {% if x %}\n{{ x | tojson }}\n  {% endif %}\n{% endfor %}\n"
    assert render(source, xs=[{"a": "<é>"}, None]) == '{"a": "<é>"}\n'


@pytest.mark.parametrize(("word", "text"), [("continue", "13"), ("break", "1")])
def test_loops_may_be_left_and_continued(word: str, text: str) -> None:
    source = (
        f"{{% for x in xs %}}{{% if x == 2 %}}{{% {word} %}}{{% endif %}}{{{{ x }}}}{{% endfor %}}"
    )
    assert render(source, xs=[1, 2, 3]) == text


def test_loop_variables_are_as_without_counting() -> None:
    source = (
        "{% for x in xs | reject('equalto', 2) %}{{ loop.index }}/{{ loop.length }}{{ "
        "loop.last }} {% endfor %}"
    )
    assert render(source, xs=[1, 2, 3]) == "1/2False 2/2True "
    assert render("{% for x in missing %}{{ x }}{% else %}none{% endfor %}") == "none"


def test_generated_text_is_marked_only_on_request() -> None:
    source = "a{% generation %}b{% endgeneration %}c"
    assert render(source) == "abc"
    assert render(source, marked=True) == "a|b|c"


def test_a_template_can_refuse() -> None:
    with pytest.raises(TemplateError, match="no system role"):
        render("{{ raise_exception('no system role') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro "
        "%}{{ twice(60) }}",
        "{% macro on() %}{{ on() }}{% endmacro %}{{ on() }}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(source: str) -> None:
    with pytest.raises(LimitError, match=f"more than {MAX_STEPS:,} steps|without end"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(x='xx') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% "
        "endfor %}",
        "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x %}{{ ns.x * 2 }}{% "
        "endset %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% "
        "endfor %}",
        "{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('xx') }}",
        "{{ 'x' * 999999999 }}",
        "{{ [1] * 999999999 }}",
        "{{ 999999999 * 'x' }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x' | center(999999999) }}",
        "{{ 'x' | indent(999999999) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{% set x = 'x' * 60000 %}{{ x.replace('x', x) }}",
        "{% set x = 'x' * 60000 %}{{ x | replace('x', x) }}",
        "{% set x = 'x' * 60000 %}{{ x.join(x) }}",
        "{% set x = 'x' * 60000 %}{% for a in range(99999) %}{{ x }}{% endfor %}",
    ],
)
def test_a_template_that_makes_something_huge_is_stopped(source: str) -> None:
    with pytest.raises(LimitError):
        render(source)


def test_what_an_operator_raises_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match="TypeError"):
        render("{{ 'a' + 1 }}")
    with pytest.raises(TemplateError, match="ZeroDivisionError"):
        render("{{ 1 / 0 }}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '=' * 3 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ '%s-%03d' % ('a', 7) }}", "===38a-007"),
        ("{{ 'a-b'.replace('-', '+') }}{{ ['a', 'b'] | join(', ') }}", "a+ba, b"),
        ("{{ 'x\ny' | indent(2) }}{{ namespace(a=1).a }}{{ dict(a=1).a }}", "x\n  y11"),
        ("{{ '{:>3}'.format(1) }}{{ 'ab' | center(4) }}|", "  1 ab |"),
    ],
)
def test_ordinary_use_of_bounded_operations_is_allowed(source: str, text: str) -> None:
    assert render(source) == text


def test_bounds_count_for_each_rendering() -> None:
    sandbox = Sandbox("|")
    template = sandbox.from_string("{% for a in range(90000) %}{% endfor %}")
    for _ in range(MAX_STEPS // 90000 + 2):
        sandbox.render(template, {})
    assert MAX_SIZE > MAX_STEPS
