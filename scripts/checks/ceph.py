"""Serve S3 at a port of this machine from a Ceph cluster in memory, until it is told to stop.

\b
    python scripts/checks/ceph.py PORT FOLDER

Of Debian's packages ceph-mon, ceph-osd and radosgw. Empty, with one user; it takes ten seconds to
start. `scripts/check_stores ceph` runs the tests of stores with it.
"""

import getpass
import grp
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers.store_servers import S3, free_port, process, wait_for

_TRIES = 20  # seconds apart
_SETTINGS = """
[global]
fsid = {cluster}
mon host = v1:127.0.0.1:{monitor}
mon initial members = a
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
auth supported = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 1
osd objectstore = memstore
memstore device bytes = 4294967296
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
osd data = {folder}/osd
mon data = {folder}/mon
rgw data = {folder}
keyring = {folder}/keyring
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port}
"""


@click.command(help=__doc__)
@click.argument("port", type=int)
@click.argument("folder", type=click.Path(path_type=Path))
def main(port: int, folder: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # and stop what it started
    cluster, disk, monitor = str(uuid.uuid4()), str(uuid.uuid4()), free_port()
    settings, names = folder / "ceph.conf", folder / "monitors"
    settings.write_text(
        _SETTINGS.format(cluster=cluster, monitor=monitor, folder=folder, port=port)
    )
    (folder / "keyring").touch()
    (folder / "osd").mkdir()
    user = ["--setuser", getpass.getuser(), "--setgroup", grp.getgrgid(os.getgid()).gr_name]

    def run(*command: str, until: str = "") -> str:
        environment = os.environ | {"CEPH_CONF": str(settings)}
        for _ in range(_TRIES):  # a monitor that has just started refuses commands
            limited = ["timeout", "30", *command]
            done = subprocess.run(limited, env=environment, capture_output=True, text=True)
            if done.returncode == 0 and until in done.stdout:
                return done.stdout.strip()
            time.sleep(1)
        raise AssertionError(f"{' '.join(command)}: {done.stdout} {done.stderr}")

    def daemon(program: str, *arguments: str) -> list[str]:
        return [program, "-f", "-c", str(settings), *arguments, *user]

    address = f"[v1:127.0.0.1:{monitor}]"
    run("monmaptool", "--create", "--fsid", cluster, "--addv", "a", address, str(names))
    run("ceph-mon", "-c", str(settings), "--mkfs", "-i", "a", "--monmap", str(names), *user)
    with ExitStack() as stack:
        stack.enter_context(process(daemon("ceph-mon", "-i", "a")))
        number = run("ceph", "osd", "new", disk)
        run("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", disk, *user)
        run("ceph", "osd", "crush", "add-bucket", "here", "host")
        run("ceph", "osd", "crush", "move", "here", "root=default")
        run("ceph", "osd", "crush", "add", f"osd.{number}", "1.0", "host=here")
        stack.enter_context(process(daemon("ceph-osd", "-i", number)))
        run("ceph", "osd", "stat", until="1 up")
        access = ["--access-key", S3["AWS_ACCESS_KEY_ID"]]
        access += ["--secret-key", S3["AWS_SECRET_ACCESS_KEY"]]
        run("radosgw-admin", "user", "create", "--uid", "test", "--display-name", "test", *access)
        program = stack.enter_context(process(daemon("radosgw", "-n", "client.rgw")))
        wait_for(f"http://127.0.0.1:{port}", program)
        signal.pause()


if __name__ == "__main__":
    main()
