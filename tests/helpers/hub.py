"""A hub on this machine: the HTTP API that the real client of the hub calls to push and to read.

Repositories of datasets with branches of commits, buckets, and a store of large files. Uploading
follows the client's steps: the way of each file (preupload), the batch of large files and their
bytes, then one commit. It lists, describes and serves the files of any revision.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

TOKEN = "hf_" + "secretsecret" * 3
_DATE = "2026-11-23T00:00:00.000Z"
_LARGE = (".arrow",)  # sent to the store of large files


@dataclass
class Hub:
    """State of the hub. Repositories are `user/name`.

    branches: commits of each repository by branch, newest last; a commit is its files by path.
    buckets: files of each bucket by path. stored: large files by sha256. uploads: the digest of
    each upload. seen: requests as "METHOD path". strike: called before each upload of a large file;
    raises to break the connection. refuse: requests whose path has this part are answered with this
    status. busy: requests after the first one that get "service unavailable".
    """

    url: str = ""
    branches: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    uploads: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    strike: Callable[[], None] = lambda: None
    refuse: tuple[str, int] = ("", 0)
    busy: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a process that uses this hub, with the token of its user.

        Other tests of the same process may have made it offline.
        """
        offline = {"HF_HUB_OFFLINE": "0"}
        return offline | {"HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}

    def head(self, name: str, branch: str = "main") -> dict[str, bytes]:
        """Files of the newest commit of a branch."""
        return self.commits[self.branches[name][branch][-1]]

    def commit(self, name: str, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Add a commit with exactly these files."""
        history = self.branches.setdefault(name, {}).setdefault(branch, [])
        number = hashlib.sha1(f"{name} {branch} {len(self.commits)}".encode()).hexdigest()
        self.commits[number] = dict(files)
        history.append(number)
        return number

    def create(self, name: str) -> None:
        """A new repository has one file, as on the hub."""
        self.commit(name, {".gitattributes": b"*.arrow filter=lfs diff=lfs merge=lfs -text\n"})

    def resolved(self, name: str, revision: str) -> str | None:
        """Commit of a branch or a commit."""
        if revision in self.commits:
            return revision
        history = self.branches[name].get(revision)
        return history[-1] if history else None


class _AnswerError(Exception):
    """The end of a request: status, JSON or bytes, headers."""

    def __init__(self, status: int, body: Any = None, **headers: str) -> None:
        super().__init__(status)
        self.status, self.headers = status, headers
        self.content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()


def _api(hub: Hub, method: str, path: str, query: dict[str, Any], body: bytes) -> None:
    """Answer a request for the API, by raising an _AnswerError."""
    if path == "/api/whoami-v2":
        raise _AnswerError(200, {"name": "user", "type": "user", "orgs": []})
    if path == "/api/validate-yaml":
        raise _AnswerError(200, {"errors": [], "warnings": []})
    if path == "/api/repos/create":
        wanted = json.loads(body)
        name = f"{wanted.get('organization') or 'user'}/{wanted['name']}"
        if name in hub.branches:
            raise _AnswerError(409, {"error": "exists", "url": f"{hub.url}/datasets/{name}"})
        hub.create(name)
        hub.private[name] = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        raise _AnswerError(200, {"url": f"{hub.url}/datasets/{name}", "name": name})
    if path.startswith("/api/buckets/"):
        _bucket(hub, path, query, body)
    match = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/([^/]+)(?:/([^/]+)(?:/(.*))?)?)?", path)
    if match is None:
        raise _AnswerError(404, {"error": f"{method} {path}"})
    name, verb, argument, rest = match.groups()
    if name not in hub.branches:
        raise _AnswerError(
            404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"}
        )
    revision = unquote(argument or "main")
    if verb == "branch":
        hub.commit(name, hub.head(name), revision)
        raise _AnswerError(200)
    commit = hub.resolved(name, revision)
    if commit is None:
        raise _AnswerError(404, {"error": "no revision"}, **{"X-Error-Code": "RevisionNotFound"})
    files = hub.commits[commit]
    if verb in (None, "revision"):
        siblings = [{"rfilename": file} for file in sorted(files)]
        facts = {"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": []}
        raise _AnswerError(200, facts | {"lastModified": _DATE})
    if verb == "preupload":
        wanted = json.loads(body)["files"]
        raise _AnswerError(200, {"files": [_mode(file["path"], files) for file in wanted]})
    if verb == "paths-info":
        asked = parse_qs(body.decode())["paths"] if b"=" in body[:6] else json.loads(body)["paths"]
        raise _AnswerError(200, [found for path in asked for found in _entries(files, path)])
    if verb == "tree":
        everything = query.get("recursive", ["false"])[0].lower() == "true"
        found = _tree(files, unquote(rest or ""), everything)
        if not found and rest:
            raise _AnswerError(404, {"error": "no entry"}, **{"X-Error-Code": "EntryNotFound"})
        raise _AnswerError(200, found)
    if verb == "commit":
        raise _AnswerError(200, _commit(hub, name, revision, body))
    raise _AnswerError(404, {"error": f"{method} {path}"})


def _bucket(hub: Hub, path: str, query: dict[str, Any], body: bytes) -> None:
    """Answer a request about a bucket, which has files and no revisions."""
    match = re.fullmatch(r"/api/buckets/([^/]+/[^/]+)(?:/(tree|paths-info)(?:/(.*))?)?", path)
    if match is None or match[1] not in hub.buckets:
        raise _AnswerError(404, {"error": path}, **{"X-Error-Code": "RepoNotFound"})
    name, verb, folder = match.groups()
    files = hub.buckets[name]
    if verb is None:
        facts = {"id": name, "private": False, "createdAt": _DATE, "size": 0, "totalFiles": 0}
        raise _AnswerError(200, facts)
    if verb == "paths-info":
        asked = [file for file in json.loads(body)["paths"] if file in files]
        raise _AnswerError(200, [_bucket_entry(_entry(file, files[file])) for file in asked])
    everything = query.get("recursive", ["false"])[0].lower() == "true"
    found = _tree(files, unquote(folder or ""), everything)
    raise _AnswerError(200, [_bucket_entry(entry) for entry in found])


def _bucket_entry(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {"xetHash": entry["oid"], "mtime": _DATE, "uploadedAt": _DATE}


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _is_large(path: str) -> bool:
    return path.endswith(_LARGE)


def _mode(path: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    large = _is_large(path)
    oid = None
    if path in files:
        oid = hashlib.sha256(files[path]).hexdigest() if large else _blob(files[path])
    return {
        "path": path,
        "uploadMode": "lfs" if large else "regular",
        "shouldIgnore": False,
        "oid": oid,
    }


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "file",
        "path": path,
        "oid": _blob(content),
        "size": len(content),
    }
    if _is_large(path):
        oid = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 130}
    return entry


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "oid": _blob(path.encode()), "size": 0}


def _entries(files: Mapping[str, bytes], path: str) -> list[dict[str, Any]]:
    if path in files:
        return [_entry(path, files[path])]
    return [_folder(path)] if any(file.startswith(f"{path}/") for file in files) else []


def _tree(files: Mapping[str, bytes], folder: str, everything: bool) -> list[dict[str, Any]]:
    start = f"{folder}/" if folder else ""
    inside = {
        file[len(start) :]: content for file, content in files.items() if file.startswith(start)
    }
    folders = {part for file in inside for part in _parents(file)}
    if not everything:
        folders = {part for part in folders if "/" not in part}
        inside = {file: content for file, content in inside.items() if "/" not in file}
    listing = [_folder(start + part) for part in sorted(folders)]
    return listing + [_entry(start + file, inside[file]) for file in sorted(inside)]


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _commit(hub: Hub, name: str, branch: str, body: bytes) -> dict[str, Any]:
    """Apply the lines of a commit, all or none."""
    lines = [json.loads(line) for line in body.splitlines()]
    header = lines[0]["value"]
    if header.get("parentCommit") not in (None, hub.branches[name][branch][-1]):
        raise _AnswerError(
            412, {"error": "A commit has happened since. Please refresh and try again."}
        )
    files = dict(hub.head(name, branch))
    for line in lines[1:]:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            if value["oid"] not in hub.stored:
                raise _AnswerError(400, {"error": f"{value['path']} was not uploaded"})
            files[value["path"]] = hub.stored[value["oid"]]
        elif line["key"] == "deletedFile":
            del files[value["path"]]
        else:
            raise _AnswerError(400, {"error": f"unknown key {line['key']}"})
    oid = hub.commit(name, files, branch)
    url = f"{hub.url}/datasets/{name}/commit/{oid}"
    return {"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""}


def _batch(hub: Hub, body: bytes) -> dict[str, Any]:
    """Actions for large files; none for those that are stored."""
    objects = []
    for wanted in json.loads(body)["objects"]:
        action = {"upload": {"href": f"{hub.url}/upload/{wanted['oid']}"}}
        stored = wanted["oid"] in hub.stored
        objects.append(wanted if stored else wanted | {"actions": action})
    return {"transfer": "basic", "objects": objects}


def _upload(hub: Hub, oid: str, body: bytes) -> None:
    assert hashlib.sha256(body).hexdigest() == oid
    hub.stored[oid] = body
    hub.uploads.append(oid)


def _file(hub: Hub, path: str, ranges: str) -> None:
    """Answer a request for a file of a revision, or for a part of it."""
    if match := re.fullmatch(r"/buckets/([^/]+/[^/]+)/resolve/(.*)", path):
        _content(hub.buckets[match[1]][unquote(match[2])], ranges)
    match = re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", path)
    if match is None:
        raise _AnswerError(404, {"error": path})
    name, revision, file = match[1], unquote(match[2]), unquote(match[3])
    if name not in hub.branches:
        raise _AnswerError(
            404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"}
        )
    commit = hub.resolved(name, revision)
    if commit is None:
        raise _AnswerError(404, {"error": "no revision"}, **{"X-Error-Code": "RevisionNotFound"})
    if file not in hub.commits[commit]:
        here = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
        raise _AnswerError(404, {"error": "no entry"}, **here)
    _content(hub.commits[commit][file], ranges, **{"X-Repo-Commit": commit})


def _content(content: bytes, ranges: str, **headers: str) -> None:
    """Answer with the bytes of a file, or with a part of them."""
    headers |= {"ETag": f'"{_blob(content)}"', "Accept-Ranges": "bytes"}
    if part := re.fullmatch(r"bytes=(\d+)-(\d*)", ranges):
        first, last = int(part[1]), int(part[2] or len(content) - 1)
        raise _AnswerError(206, content[first : last + 1], **headers)
    raise _AnswerError(200, content, **headers)


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            address = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                if address.path.startswith("/upload/"):
                    hub.strike()
                with lock:
                    hub.seen.append(f"{self.command} {address.path}")
                    self.dispatch(address.path, parse_qs(address.query), body)
            except _AnswerError as answer:
                self.reply(answer)
            except ConnectionError:
                self.close_connection = True

        def dispatch(self, path: str, query: dict[str, Any], body: bytes) -> None:
            if 1 < len(hub.seen) <= 1 + hub.busy:
                raise _AnswerError(503)
            part, status = hub.refuse
            if part and part in path:
                raise _AnswerError(status, {"error": f"refused with {status}"})
            writes = self.command in ("POST", "PUT") and "/paths-info/" not in path
            if path.startswith("/upload/"):
                _upload(hub, path.rpartition("/")[2], body)
                raise _AnswerError(200, ETag='"stored"')
            if writes and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise _AnswerError(401, {"error": "Invalid credentials in Authorization header"})
            if path.endswith("/info/lfs/objects/batch"):
                raise _AnswerError(200, _batch(hub, body))
            if path.startswith("/api/"):
                _api(hub, self.command, path, query, body)
            _file(hub, path, self.headers.get("Range") or "")

        def reply(self, answer: _AnswerError) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            for key, value in answer.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 (of http.server)

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002
            pass

    return Handler


@contextmanager
def running() -> Iterator[Hub]:
    """An empty hub that answers at its `url`."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def connect(hub: Hub, patch: pytest.MonkeyPatch) -> None:
    """Make the client of this process use the hub, with the token of its user."""
    from huggingface_hub import HfFileSystem, constants

    patch.setattr(constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setenv("HF_TOKEN", TOKEN)
    HfFileSystem.clear_instance_cache()
