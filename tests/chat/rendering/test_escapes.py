"""Published ways out of Jinja2's sandbox, and templates that take memory or time.

Each is refused with a sentence, in the rendering and in the tracing sandbox, or writes what its
text says and no more.
"""

from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError

from packprep.chat.rendering.sandbox import MAX_STEPS, Sandbox
from packprep.chat.rendering.traced_text import Recording
from packprep.chat.rendering.tracing import TracingSandbox
from packprep.chat.rendering.value_limits import LimitError
from packprep.chat.template import load_chat_template
from packprep.engines.tokenizer import load_tokenizer
from packprep.support.errors import ConfigError
from tests.helpers.corpus import save_tokenizer
from tests.helpers.errors import refused

BIG = "b" * 9_999_999
VALUES: dict[str, Any] = {"xs": [1], "table": {"a": 1}, "big": BIG}


def render(source: str, marked: bool = False, **values: Any) -> str:
    sandbox = Sandbox("|")
    return sandbox.render(sandbox.from_string(source), VALUES | values, marked=marked)


ESCAPES = [
    # CVE-2016-10745: str.format reads attributes.
    "{{ '{0.__class__}'.format(xs) }}",
    "{{ '{0[0].__class__.__mro__}'.format(xs) }}",
    # CVE-2019-10906: so does str.format_map.
    "{{ '{a.__class__}'.format_map({'a': xs}) }}",
    # CVE-2024-56326: a reference to format, called by something else.
    "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(xs) }}",
    "{{ (['{0.__class__}'] | map(attribute='format') | first)(xs) }}",
    "{% macro f(g) %}{{ g(xs) }}{% endmacro %}{{ f('{0.__class__}'.format) }}",
    # CVE-2025-27516: |attr gives str.format unwrapped.
    "{{ ('{0.__class__}' | attr('format'))(xs) }}",
    "{{ (joiner('{0.__class__}').sep | attr('format'))(xs) }}",
    "{{ ('{0.__class__}' | safe).format(xs) }}",
    # Attributes of Python, by every way to name them.
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ xs | attr('__class__') }}",
    "{{ xs['__cla' ~ 'ss__'] }}",
    "{{ [xs] | map(attribute='__class__') | list }}",
    "{{ [xs] | map('attr', '__class__') | list }}",
    "{{ [xs] | sort(attribute='__class__.__name__') }}",
    "{% filter attr('__class__') %}a{% endfilter %}",
    "{{ missing.__class__ }}",
    # Functions, and what Jinja2 itself puts into a template.
    "{{ cycler.__init__.__globals__.os }}",
    "{{ raise_exception.__code__ }}",
    "{{ self._TemplateReference__context }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__ }}",
    "{% for x in xs %}{{ loop._iterator }}{% endfor %}",
    "{{ (xs | map('string')).gi_frame }}",
    "{{ xs.__reduce_ex__(4) }}",
    # Values of the build that a template would change for the next row.
    "{{ xs.append(2) }}",
    "{{ table.update({'a': 2}) }}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_way_out_of_the_sandbox_is_refused(source: str) -> None:
    with pytest.raises(SecurityError, match="the template reads the attribute '"):
        render(source)
    assert VALUES["xs"] == [1]
    assert VALUES["table"] == {"a": 1}
    sandbox = TracingSandbox("|")
    recording = Recording()
    values = VALUES | {"text": recording.text(0, "a")}
    assert sandbox.trace(sandbox.from_string(source), values, recording) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ lipsum.__globals__['os'].popen('id').read() }}", ""),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", ""),
        ("{{ namespace({'__class__': 1}) }}", ""),
        ("{{ namespace(__init__=1) }}", ""),
        ("{{ ['{0.__class__}'.format] | map('call', xs) | list }}", ""),
        ("{{ config.items() }}", ""),
        ("{{ request.application.__globals__ }}", ""),
        ("{% include '/etc/passwd' %}", ""),
        ("{% import '/etc/passwd' as p %}", ""),
        ("{% extends '/etc/passwd' %}", ""),
        ("{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{{ m() }}", ""),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_what_a_template_may_not_do_is_an_error_of_the_template(source: str, reason: str) -> None:
    with refused(TemplateError, reason):
        render(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ range.__self__ }}{{ ''.format.__func__ }}", ""),
        ("{{ xs is callable }}{{ raise_exception is callable }}", "FalseTrue"),
        ("{{ '{}'.format(xs) }}{{ '{a}'.format_map(table) }}", "[1]1"),
        ("{{ '{{}} {:>5}| 20240101 %d%%'.format(1) % 7 }}", "{}     1| 20240101 7%"),
        ("{{ '=' * 3 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ '%s-%03d' % ('a', 7) }}", "===38a-007"),
        ("{{ 'a-b'.replace('-', '+') }}{{ ['a', 'b'] | join(', ') }}", "a+ba, b"),
        ("{{ 'x\ny' | indent(2) }}{{ namespace(a=1).a }}{{ dict(a=1).a }}", "x\n  y11"),
        ("{{ '{:>3}'.format(1) }}{{ 'ab' | center(4) }}|", "  1 ab |"),
        ("{% for x in ys %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in ys %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        (
            "{% for x in ys | reject('equalto', 2) %}{{ loop.index }}/{{ loop.length }}"
            "{{ loop.last }} {% endfor %}",
            "1/2False 2/2True ",
        ),
        ("{% for x in missing %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("\n  {% if xs %}\n{{ {'a': '<é>'} | tojson }}\n  {% endif %}\n", '\n{"a": "<é>"}\n'),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
    ],
)
def test_what_is_allowed_renders_its_text(source: str, text: str) -> None:
    assert render(source, ys=[1, 2, 3]) == text


GROWING = [
    "{{ range(10 ** 9) | list }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ 10 ** 9 * 'a' }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ 'x' | center(999999999) }}",
    "{{ 'x' | indent(999999999) }}",
    "{{ '%999999999d' | format(1) }}",
    "{% set x = 'x' * 60000 %}{{ x.replace('x', x) }}",
    "{% set x = 'x' * 60000 %}{{ x | replace('x', x) }}",
    "{% set x = 'x' * 60000 %}{{ x.join(x) }}",
    "{% set x = 'x' * 60000 %}{% for a in range(99999) %}{{ x }}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x %}{{ ns.x * 2 }}"
    "{% endset %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}",
    "{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('xx') }}",
    "{{ ('{0:999999}' * 100000).format(1) }}",
    "{{ ('{0}' * 100000).format(big) }}",
    "{{ '{0:{1}}'.format('a', 9999999) }}",
    "{{ ('%(a)s' * 100000) % {'a': big} }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ ('a' * 9999999).translate({97: 'bbbbb'}) }}",
    "{{ ('\t' * 9999999).expandtabs() }}",
    "{{ 'a'.zfill(999999999) }}",
    "{{ (1).to_bytes(999999999, 'big') }}",
    "{{ [big] * 1000 }}",
    "{{ ([big, big] | join) }}",
    "{{ [big, big] | tojson | length }}",
    "{{ {'a': big, 'b': big} | pprint | length }}",
    "{{ (big ~ big) | upper }}",
    "{{ [xs] | tojson(indent=9999999) }}",
    "{{ range(999) | list | tojson(separators=(big, ':')) }}",
    "{{ [1] | batch(99999999, 'x') | list }}",
    "{{ [1] | slice(99999999) | list }}",
    "{% macro f(x, n) %}{{ f([x, x], n - 1) if n else x }}{% endmacro %}{{ f(['a'], 60) }}",
    "{{ " + " ~ ".join(["big"] * 100) + " }}",
    "{{ (" + " + ".join(["big"] * 50) + ") | length }}",
]


@pytest.mark.parametrize("source", GROWING, ids=range(len(GROWING)))
def test_a_template_that_makes_gigabytes_is_stopped(source: str) -> None:
    with pytest.raises(LimitError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
        "{% for a in range(99999) %}{{ big | upper | length }}{% endfor %}",
        "{% for a in range(99999) %}{{ big.upper()[:1] }}{% endfor %}",
        "{% for a in range(99999) %}{{ [xs] | batch(999) | list | length }}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% macro on() %}{{ on() }}{% endmacro %}{{ on() }}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    ],
)
def test_a_template_that_does_not_end_is_stopped(source: str) -> None:
    """Filters and methods of large values count as many steps."""
    with pytest.raises(LimitError, match=f"more than {MAX_STEPS:,} steps|without end"):
        render(source)


def test_bounds_count_for_each_rendering() -> None:
    sandbox = Sandbox("|")
    loop = sandbox.from_string("{% for a in range(90000) %}{% endfor %}")
    for _ in range(MAX_STEPS // 90000 + 2):
        sandbox.render(loop, {})


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{% break %}", "does not compile: 'break' outside loop; change the template"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "does not compile: it nests too deeply"),
        ("{{ " + "-" * 3000 + "1 }}", "does not compile: it nests too deeply"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "does not compile: too many statically"),
        ("{% for a in b %}\n{% endif %}", "does not parse: line 2"),
        ("\ufdd0", "contains U+FDD0, which is not a character; remove it"),
        ("{{ 1 | nothing }}", "does not parse: line 1: No filter named 'nothing'."),
        ("{% async %}", "does not parse: line 1: Encountered unknown tag 'async'."),
        ("x" * 1_000_001, "has 1,000,001 characters; expected at most 1,000,000"),
    ],
)
def test_a_template_that_cannot_be_compiled_is_a_sentence(
    tmp_path: Path, source: str, sentence: str
) -> None:
    path = tmp_path / "a.jinja"
    path.write_text(source)
    with refused(ConfigError, f"{path} {sentence}"):
        load_chat_template(load_tokenizer(save_tokenizer(tmp_path / "tokenizer")), path)
