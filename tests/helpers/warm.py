"""Commands in new processes that have imported packprep already: forks of one that imported it.

An interpreter needs seconds of CPU to import packprep, datasets and torch. The pages of the
documentation run more than a hundred commands, and tests start workers and training. A server
imports each set once, when the first command needs it, and forks for each command. A command gets a
folder, environment, streams, session and signals of its own, like a process that a shell starts.
One thing differs: it does not restart itself to request huge pages.

    python -m tests.helpers.warm SOCKET                  the server; it ends with its standard input
    python tests/helpers/warm.py SOCKET packprep build   the client, instead of `packprep build`
    python tests/helpers/warm.py SOCKET python train.py  the same, with torch imported
    python tests/helpers/warm.py SOCKET python -m tests.faults.poisoned_worker

The client becomes an ordinary process if there is no server, or if a variable that libraries read
on import differs from the server's.
"""

import array
import contextlib
import io
import json
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_READ_ON_IMPORT = ("GLIBC_", "HF_", "LD_", "MALLOC_", "NUMBA_", "OMP_", "PYTHON", "TORCH")
_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_COLD = b"cold"  # the answer if the client has to start the command itself


def command(*arguments: str, **variables: str) -> list[str]:
    """Return the command line of `packprep ...` or `python ...` as a fork of the server.

    Without a server it is an ordinary process. Its environment is that of the server, not of
    the process that starts it, and these variables.
    """
    address = os.environ.get("PACKPREP_WARM", "")
    cache = Path(address).parent / "cache" if address else Path(tempfile.gettempdir(), "cache")
    pairs = [f"{name}={value}" for name, value in (environment(cache) | variables).items()]
    return ["env", "-i", *pairs, sys.executable, "-ISs", __file__, address, *arguments]


def environment(cache: Path) -> dict[str, str]:
    """Environment of the server, and of commands that are forks of it.

    cache: of Hugging Face libraries. No address but this machine's can be reached. torch has one
    thread, because tests run side by side.
    """
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    here = {"no_proxy": "127.0.0.1,localhost"}
    proxies = nowhere | here
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        **proxies,
        **{name.upper(): value for name, value in proxies.items()},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(cache),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def run(address: str, arguments: list[str]) -> int:
    """Run `packprep ...` or `python ...` in a fork of the server. Returns its exit code."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        options = arguments[:1] == ["python"] and arguments[1][:1] == "-"
        if options and arguments[1] not in ("-c", "-m"):
            raise OSError("options of the interpreter need an interpreter")
        connection.connect(f"{address}.{arguments[0]}")
    except OSError:
        _run_cold(arguments)
    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
    fields = {"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    request = json.dumps(fields).encode()
    streams = array.array("i", [0, 1, 2])
    connection.sendmsg(
        [len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
    )
    connection.sendall(request)
    answer = connection.recv(16)
    if answer == _COLD:
        _run_cold(arguments)
    if not answer:
        raise SystemExit("the server of tests/helpers/warm.py ended")
    code = int(answer)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _run_cold(arguments: list[str]) -> None:
    name, *rest = arguments
    if rest[:1] == ["-m"]:
        os.environ["PYTHONPATH"] = str(ROOT)
    module = ["-m", "packprep"] if name == "packprep" else []
    os.execv(sys.executable, [sys.executable, *module, *rest])


def serve(address: str) -> None:
    """Fork for clients until standard input ends."""
    listeners: dict[socket.socket, Callable[[], None]] = {}
    for name, imports in (("packprep", _import_command), ("python", _import_torch)):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{address}.{name}")
        listener.listen(64)
        listeners[listener] = imports
    while True:
        inputs: list[Any] = [sys.stdin, *listeners]
        ready, _, _ = select.select(inputs, [], [])
        if sys.stdin in ready:
            return
        for listener in ready:
            imports = listeners.pop(listener)
            if os.fork() == 0:
                _fork_for_clients(listener, imports)
            listener.close()


def _fork_for_clients(listener: socket.socket, imports: Callable[[], None]) -> None:
    """Import, then answer each client in a process of its own. Does not return."""
    import gc

    from packprep.support.linux import end_with_parent

    end_with_parent()
    gc.set_threshold(100_000)  # as packprep/__main__.py does
    at_start = _read_on_import(os.environ)
    imports()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(client, at_start)
            os._exit(0)
        client.close()


def _answer(client: socket.socket, at_start: dict[str, str]) -> None:
    """Fork the command, forward signals to it, and send its exit code.

    In the command it raises _Begin.
    """
    head, ancillary, _, _ = client.recvmsg(8, socket.CMSG_LEN(12))
    streams = array.array("i", ancillary[0][2])
    request = b""
    while len(request) < int.from_bytes(head, "big"):
        request += client.recv(1 << 16)
    fields = json.loads(request)
    if _read_on_import(fields["environment"]) != at_start:
        client.sendall(_COLD)
        return
    command = os.fork()
    if command == 0:
        client.close()
        _enter(streams, fields["folder"], fields["environment"])
        raise _Begin(*fields["arguments"])
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(command)
    inputs: list[Any] = [client, ended]
    while ended not in select.select(inputs, [], [])[0]:
        numbers = client.recv(16) or bytes([signal.SIGKILL])  # the client was killed
        for number in numbers:
            os.kill(command, number)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        client.sendall(str(code).encode())


def _enter(streams: "array.array[int]", folder: str, environment: dict[str, str]) -> None:
    """Take over session, streams, folder and environment of the client."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # Made again: unbuffered, as with PYTHONUNBUFFERED, and with the errors of a new process.
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = os.fdopen(os.dup(number), "wb", 0)
        setattr(sys, name, io.TextIOWrapper(raw, "utf-8", errors, write_through=True))
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)


class _Begin(BaseException):
    """Unwinds the stack of the server, and says which command begins."""


def _run_warm(*words: str) -> None:
    """Run a command, and end as an interpreter does, without freeing what the server imported.

    That would copy most of its memory, and take a second with torch.
    """
    import atexit
    import threading

    code = 0
    try:
        _begin(*words)
    except SystemExit as stopped:
        if not isinstance(stopped.code, int | None):
            raise
        code = stopped.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _begin(name: str, *arguments: str) -> None:
    import runpy
    import types

    sys.orig_argv = [sys.executable, *arguments]
    if name == "packprep":
        sys.orig_argv[1:1] = ["-m", "packprep"]
        sys.argv = ["packprep", *arguments]
        from packprep.cli.main import main
        from packprep.cli.streams import outlive_readers

        outlive_readers()
        main()
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), module.__dict__)
    elif arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, str(ROOT))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))  # noqa: PTH100, PTH120
        runpy.run_path(os.path.abspath(arguments[0]), run_name="__main__")  # noqa: PTH100


def _import_command() -> None:
    from packprep.engines.third_party import tell_libraries

    tell_libraries()  # else `datasets` would import torch
    _import_packprep()


_LAZY = (
    *("datasets", "packprep.execute.pipeline", "packprep.inspect.verify"),
    *("rich.console", "rich.progress", "rich.table", "rich.text", "tokenizers"),
)
"""Modules that commands import when they need them."""


def _import_packprep() -> None:
    """Import what commands import, and load the compiled kernels."""
    import importlib

    from packprep.cli.main import COMMANDS, module_of

    for name in (*map(module_of, COMMANDS), *_LAZY):
        importlib.import_module(name)
    for name in ("fastokens", "gigatoken"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from tests.helpers.kernels import load_all

    load_all()


def _import_torch() -> None:
    import torch
    import transformers

    import packprep.loaders

    _import_packprep()
    assert all((torch.nn, transformers.LlamaForCausalLM, transformers.Trainer, packprep.loaders))


def _read_on_import(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_ON_IMPORT)}


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(run(sys.argv[1], sys.argv[2:]))
    words: tuple[str, ...] = ()
    try:
        serve(sys.argv[1])
    except _Begin as begin:
        words = begin.args
    if words:
        sys.path.pop(0)  # the folder of the server
        _run_warm(*words)
