"""`packprep env --bundle`: a zip file for an issue: versions, options, manifest, report, receipts.

Only JSON and YAML that packprep writes about a build is read. Token files, shards, quarantined rows
and tokenizers are listed by name and size. Every value is redacted: credentials in addresses, known
kinds of tokens, values under names such as `api_key`, and the values of environment variables whose
names say that they are secret. The same files and environment give the same bytes.
"""

import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from packprep.cli.environment import environment
from packprep.config.yaml_file import load_yaml
from packprep.output.staging import APPENDED, BUILD, NAMES, SUFFIX
from packprep.schemas.files import MANIFEST
from packprep.schemas.storage.stores import Store, is_url
from packprep.support.errors import ConfigError, asked
from packprep.support.redact import HIDDEN, redacted

_FACTS = (MANIFEST, "report.json", "build.yaml", "state.json", "dataset_info.json", BUILD, NAMES)
_RECEIPTS = ("receipts", "tokens")  # folders
_MOST_RECEIPTS = 1000  # of a folder
_MOST_BYTES = 50_000_000  # of a file; a report has a line for each window
_LEAST_SECRET = 6  # characters; a shorter value of a variable is a word such as "false"
_SECRET = r"(?:secret|token|passw|passphrase|credential|signature|(?:api|access|private)[_-]?key)"
_SECRET_KEY = re.compile(  # api_key, accessToken, Authorization; not gigatoken
    r"(?:^|[\W\d_]|access|api|auth|bearer|client|private|refresh|session|user)"
    r"(?:secret|token|password|passwd|passphrase|credentials?|signature|key|auth|authorization)$",
    re.I,
)
_SECRET_VARIABLE = re.compile(r"secret|token|passw|passphrase|credential|signature|key|auth", re.I)
_ASSIGNED = re.compile(rf"([\w.-]{{0,100}}{_SECRET}[\w.-]{{0,100}}=)[^\s/&;,'\"]+", re.I)
_SPECIAL = re.compile(r"<[^<>\s]{1,60}>|\[[A-Z_]{1,60}\]")  # such as <|end|> or [SEP]
_WEB_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?")  # begins with {" in base64
_QUOTES_DATA = ("failed",)  # sentence of an error, which may quote a row


@dataclass(frozen=True)
class _File:
    """A file of an output; problem: reason why it is not read, if there is one."""

    size: int
    read: Callable[[], bytes]
    problem: str = ""


def write_bundle(path: Path, output: str | None = None) -> list[str]:
    """Write the zip file and return the names in it. ConfigError if `path` exists.

    output: an output or OUT.incomplete, damaged or not, or the URL of a finished one. With a
    directory OUT, OUT.incomplete and an unfinished append are included.
    """
    clean = _Cleaner()
    content = {"env.json": _json(clean(environment()))}
    for folder, files in _folders(output) if output is not None else ():
        content |= _facts(folder, files, clean)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as bundle:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name)  # dated 1980-01-01
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = 0o644 << 16
            bundle.writestr(entry, content[name])
    _write_new(path, written.getvalue())
    return sorted(content)


def _write_new(path: Path, content: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise ConfigError(f"{path} exists; choose another name, or delete it") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; choose another place"
        ) from None


def _folders(output: str) -> Iterator[tuple[str, dict[str, _File]]]:
    """Folders of a build by their names in the bundle, which do not show the name of the output."""
    if is_url(output):
        with asked():
            store = Store(output)
            files = {
                name: _File(stored.bytes, partial(store.read, name))
                for name, stored in store.list().items()
            }
        folders = {"output": files}
    else:
        path = Path(output)
        if path.name.endswith(SUFFIX):
            folders = {"output" + SUFFIX: _listed(path)}
        else:
            folders = {
                "output" + end: _listed(path.with_name(path.name + end))
                for end in ("", SUFFIX, APPENDED, APPENDED + SUFFIX)
            }
    known = {
        folder: files
        for folder, files in folders.items()
        if any(name in _FACTS or name.endswith(".arrow") for name in files)
    }
    if not known:
        raise ConfigError(
            f"{output} has no files of a build; give an output of packprep, or its {SUFFIX} folder"
        )
    yield from known.items()


def _listed(directory: Path) -> dict[str, _File]:
    """Files of a directory and of the folders in it; nothing if it does not exist."""
    files = {}
    for pattern in ("*", "*/*"):
        for path in directory.glob(pattern):
            try:
                facts = path.lstat()
            except FileNotFoundError:  # a running build deletes files
                continue
            if not stat.S_ISDIR(facts.st_mode):
                regular = stat.S_ISREG(facts.st_mode)
                files[path.relative_to(directory).as_posix()] = _File(
                    facts.st_size, path.read_bytes, "" if regular else "not a regular file"
                )
    return files


def _facts(folder: str, files: Mapping[str, _File], clean: "_Cleaner") -> dict[str, bytes]:
    """Redacted files of a folder, and files.json: names, sizes, and why a file is left out."""
    content: dict[str, bytes] = {}
    listing = []
    receipts = dict.fromkeys(_RECEIPTS, 0)
    for name in sorted(files):
        entry: dict[str, Any] = {"name": clean(name), "bytes": files[name].size}
        within = PurePosixPath(name).parts[0]
        receipt = within in receipts and name.endswith(".json")
        if name in _FACTS or receipt:
            if receipt:
                receipts[within] += 1
            if receipt and receipts[within] > _MOST_RECEIPTS:
                problem = f"the first {_MOST_RECEIPTS:,} receipts are included"
            else:
                value, problem = _loaded(name, files[name])
                if not problem:
                    content[f"{folder}/{clean(name)}"] = _written(name, clean(value))
            entry |= {"left_out": problem} if problem else {}
        listing.append(entry)
    return content | {f"{folder}/files.json": _json(listing)}


def _loaded(name: str, file: _File) -> tuple[Any, str]:
    """Value of a JSON or YAML file, and why it is left out.

    A damaged file is left out whole: its bytes may be those of another file.
    """
    if file.problem:
        return None, file.problem
    if file.size > _MOST_BYTES:
        return None, f"larger than {_MOST_BYTES:,} bytes"
    try:
        content = file.read()
        return (_yaml(content) if name.endswith(".yaml") else json.loads(content)), ""
    except json.JSONDecodeError as error:
        return None, f"not JSON: {error.msg} at character {error.pos:,}"
    except (ValueError, RecursionError):
        return None, f"not {'YAML' if name.endswith('.yaml') else 'JSON'} as packprep writes it"
    except OSError as error:
        return None, f"cannot be read: {error.strerror or type(error).__name__}"


def _yaml(content: bytes) -> Any:
    try:
        return load_yaml(content.decode())
    except Exception:  # PyYAML lets errors of int(), date() and re.match through
        raise ValueError from None


def _written(name: str, value: Any) -> bytes:
    if not name.endswith(".yaml"):
        return _json(value)
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10**9).encode()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


class _Cleaner:
    """Redacts values, with the secrets that the environment of this process names."""

    def __init__(self) -> None:
        named = (value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name))
        values = {*named, *map(_password, os.environ.values())}
        forms = {
            form
            for value in values
            if len(value) >= _LEAST_SECRET
            for form in (value, unquote(value), quote(value, safe=""))
        }
        # Longest first: a secret may begin with another one.
        known = sorted(forms, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        self._home = str(Path.home())

    def __call__(self, value: Any, key: str = "") -> Any:
        """`value` of JSON with every string in it redacted."""
        if isinstance(value, dict):
            return {self._text(str(name)): self(item, str(name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self(item, key) for item in value]
        if value is None or isinstance(value, bool):
            return value
        if key in _QUOTES_DATA or (_SECRET_KEY.search(key) and not _is_special(value)):
            return HIDDEN
        if not isinstance(value, str):
            return value
        return self._variables(value) if key == "template_variables" else self._text(value)

    def _variables(self, text: str) -> str:
        """Variables of a chat template, which are JSON in a string."""
        try:
            return json.dumps(self(json.loads(text)))
        except (ValueError, RecursionError):
            return HIDDEN

    def _text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _WEB_TOKEN.sub(HIDDEN, _ASSIGNED.sub(rf"\1{HIDDEN}", text))
        if len(self._home) > 1:
            text = re.sub(rf"{re.escape(self._home)}(?=/|$)", "~", text)
        return redacted(text)


def _is_special(value: Any) -> bool:
    """True for a special token of a tokenizer."""
    return isinstance(value, str) and _SPECIAL.fullmatch(value) is not None


def _password(value: str) -> str:
    """Password in an address, such as that of a proxy; "" if there is none."""
    try:
        return urlsplit(value).password or ""
    except ValueError:
        return ""
