"""Published ways out of Jinja2's sandbox, and templates that take memory or time.

Each is refused with a sentence, in the rendering and in the tracing sandbox, or writes what its
text says and no more.
"""

from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError

from packprep.chat.conversations import Conversation
from packprep.chat.rendering.sandbox import Sandbox
from packprep.chat.rendering.traced_text import Recording
from packprep.chat.rendering.tracing import TracingSandbox
from packprep.chat.rendering.value_limits import LimitError
from packprep.chat.template import load_chat_template
from packprep.engines.tokenizer import load_tokenizer
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import save_tokenizer
from tests.helpers.errors import refused

BIG = "b" * 9_999_999
VALUES: dict[str, Any] = {"xs": [1], "table": {"a": 1}, "big": BIG}


def render(source: str) -> str:
    sandbox = Sandbox("|")
    return sandbox.render(sandbox.from_string(source), VALUES)


ESCAPES = [
    # CVE-2016-10745: str.format reads attributes.
    "{{ '{0.__class__}'.format(xs) }}",
    "{{ '{0[0].__class__.__mro__}'.format(xs) }}",
    "{% set f = '{0.__class__}'.format %}{{ f(xs) }}",
    # CVE-2019-10906: so does str.format_map.
    "{{ '{a.__class__}'.format_map({'a': xs}) }}",
    # CVE-2024-56326: a reference to format, called by something else.
    "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(xs) }}",
    "{{ dict(f='{0.__class__}'.format)['f'](xs) }}",
    "{{ cycler('{0.__class__}'.format).next()(xs) }}",
    "{{ (['{0.__class__}'] | map(attribute='format') | first)(xs) }}",
    "{% macro f(g) %}{{ g(xs) }}{% endmacro %}{{ f('{0.__class__}'.format) }}",
    # CVE-2025-27516: |attr gives str.format unwrapped.
    "{{ ('{0.__class__}' | attr('format'))(xs) }}",
    "{{ ('{a.__class__}' | attr('format_map'))({'a': xs}) }}",
    "{{ (joiner('{0.__class__}').sep | attr('format'))(xs) }}",
    "{{ ('{0.__class__}' | safe).format(xs) }}",
    # Attributes of Python, by every way to name them.
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ xs | attr('__class__') }}",
    "{{ xs | attr('_' '_class_' '_') }}",
    "{{ xs['__cla' ~ 'ss__'] }}",
    "{{ [xs] | map(attribute='__class__') | list }}",
    "{{ [xs] | map('attr', '__class__') | list }}",
    "{{ [xs] | groupby('__class__') }}",
    "{{ [xs] | sum(attribute='__class__') }}",
    "{{ [xs] | sort(attribute='__class__.__name__') }}",
    "{{ [xs] | selectattr('__class__') | list }}",
    "{{ [xs] | unique(attribute='__class__') | list }}",
    "{% filter attr('__class__') %}a{% endfilter %}",
    "{{ missing.__class__ }}",
    "{{ table.__class__ }}",
    # Functions, and what Jinja2 itself puts into a template.
    "{{ cycler.__init__.__globals__.os }}",
    "{{ joiner.__init__.__globals__.os }}",
    "{{ namespace.__init__.__globals__.os }}",
    "{{ raise_exception.__code__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__ }}",
    "{% for x in xs %}{{ loop._iterator }}{% endfor %}",
    "{{ (xs | map('string')).gi_frame }}",
    "{{ ''.encode().decode.__self__ }}",
    "{{ xs.__reduce_ex__(4) }}",
    # Values of the build that a template would change for the next row.
    "{{ xs.append(2) }}",
    "{{ table.update({'a': 2}) }}",
    "{{ table.setdefault('b', 2) }}",
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
    "source",
    [
        "{{ lipsum.__globals__['os'].popen('id').read() }}",  # there is no lipsum
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace({'__class__': 1}) }}",
        "{{ namespace(__init__=1) }}",
        "{{ ['{0.__class__}'.format] | map('call', xs) | list }}",
        "{{ config.items() }}",
        "{{ request.application.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as p %}",
        "{% extends '/etc/passwd' %}",
        "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_name_that_a_template_does_not_have_is_refused(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ range.__self__ }}{{ ''.format.__func__ }}", ""),
        ("{{ xs is callable }}{{ raise_exception is callable }}", "FalseTrue"),
        ("{{ '{}'.format(xs) }}{{ '{a}'.format_map(table) }}", "[1]1"),
        ("{{ '{{}} {:>5}| 20240101 %d%%'.format(1) % 7 }}", "{}     1| 20240101 7%"),
    ],
)
def test_what_looks_like_a_way_out_and_is_none_renders_its_text(source: str, text: str) -> None:
    assert render(source) == text


GROWING = [
    "{{ range(10 ** 9) | list }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ ('{0:999999}' * 100000).format(1) }}",
    "{{ ('{0}' * 100000).format(big) }}",
    "{{ '{0:{1}}'.format('a', 9999999) }}",
    "{{ ('%999999d' * 99) % (1,) }}",
    "{{ ('%(a)s' * 100000) % {'a': big} }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ ('a' * 9999999).translate({97: 'bbbbb'}) }}",
    "{{ ('\t' * 9999999).expandtabs() }}",
    "{{ 'a'.zfill(999999999) }}",
    "{{ (1).to_bytes(999999999, 'big') }}",
    "{{ [big] * 1000 }}",
    "{{ ([big, big] | join) }}",
    "{{ [big, big] }}",
    "{{ [big, big] | string | length }}",
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
    ],
)
def test_filters_and_methods_of_large_values_count_as_many_steps(source: str) -> None:
    with pytest.raises(LimitError, match="more than 500,000 steps"):
        render(source)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{% break %}", "does not compile: 'break' outside loop; change the template"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "does not compile: it nests too deeply"),
        ("{{ " + "-" * 3000 + "1 }}", "does not compile: it nests too deeply"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "does not compile: too many statically"),
        ("{{ 1 | nothing }}", "does not parse: line 1: No filter named 'nothing'."),
        ("{% async %}", "does not parse: line 1: Encountered unknown tag 'async'."),
        ("x" * 1_000_001, "has 1,000,001 characters; expected at most 1,000,000"),
    ],
)
def test_a_template_that_cannot_be_compiled_is_a_sentence(
    tmp_path: Path, source: str, sentence: str
) -> None:
    tokenizer = load_tokenizer(save_tokenizer(tmp_path / "tokenizer"))
    path = tmp_path / "a.jinja"
    path.write_text(source)
    with refused(ConfigError, f"{path} {sentence}"):
        load_chat_template(tokenizer, path)


def test_the_reason_of_a_refusal_is_in_the_error_of_a_row(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_tokenizer(tmp_path / "tokenizer"))
    path = tmp_path / "a.jinja"
    path.write_text("{{ messages.__class__ }}")
    template = load_chat_template(tokenizer, path)
    with refused(InputError, "cannot render it: the template reads the attribute '__class__'"):
        template.render(Conversation([{"role": "user", "content": "a"}]))
