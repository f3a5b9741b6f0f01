"""Names without credentials and control characters, for messages, reports and manifests.

Names come from users and from the hub's answers: https://user:password@host, ?X-Amz-Signature=...,
hf_ tokens. File names may have line feeds and terminal commands in them. Every PackprepError and
the name of every source is redacted here.
"""

import re
from collections.abc import Mapping

HIDDEN = "***"

# Repetitions have bounds: a message may quote a row of megabytes, and the time must not grow with
# the square of its length.
_SECRETS = (
    # https://user:pa@ss@host and https://token@host, but not https://host/name@revision; Path makes
    # one slash of two
    (
        re.compile(r"(?<=[\w+.-]{2})(:/{1,2})(?:[^\s/@]{0,500}:\S{0,2000}|[^\s/@]{0,2000})@"),
        rf"\1{HIDDEN}@",
    ),
    # All parameters of an address: any of them may be a signature.
    (re.compile(r"(?<=[\w+.-]{2})(:/{1,2}[^\s?#'\"]{0,2000})[?#][^\s'\"]+"), rf"\1?{HIDDEN}"),
    (
        re.compile(
            r"([?&;][\w.-]{0,100}(?:token|secret|signature|passw|credential|key|sig|auth)[\w.-]{0,100}=)[^\s&;'\"]+",
            re.I,
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"\b(Bearer|Basic)\s{1,9}[\w.~+/=-]{8,}", re.I), rf"\1 {HIDDEN}"),
    (
        re.compile(
            r"\b(hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|npm_|pypi-|sk-|AIza|AKIA|ASIA)[A-Za-z0-9_-]{16,}"
        ),
        rf"\1{HIDDEN}",
    ),
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def redacted(text: str) -> str:
    """`text` on one line and without credentials.

    >>> redacted("s3://key:secret@bucket/a.jsonl?X-Amz-Signature=abc is no file")
    's3://***@bucket/a.jsonl?*** is no file'
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def redacted_source(source: str | Mapping[str, object]) -> str | dict[str, object]:
    """An entry of `sources` with its paths and its label redacted."""
    if isinstance(source, str):
        return redacted(source)
    paths = source["path"]
    several = paths if isinstance(paths, list | tuple) else [paths]
    shown = [redacted(str(path)) for path in several]
    label = {"label": redacted(str(source["label"]))} if "label" in source else {}
    return {**source, "path": shown if several is paths else shown[0]} | label
