"""What a plan of packs remembers of the token stores that hold its tokens."""

import os
import shlex
from typing import Any

from .tasks import Work


def plan_of(work: Work) -> tuple[dict[str, Any], dict[str, Any]]:
    """`plan` of the manifest, and `stores` of its `run`.

    These have of each entry the folder of its store, from the output too, and the command that
    makes it.
    """
    output, files, stores = work.job.config.output, list[Any](), dict[str, Any]()
    for entry in work.entries:
        for file in entry.files:
            facts = {name: getattr(file, name) for name in ("bytes", "digest", "documents")}
            facts |= {"path": f"{entry.key}/{file.name}", "rows": sum(file.rows.values())}
            files.append(facts)
        store, names = entry.place.root.parent, entry.facts["names"]
        sources = ["-c", f"{output}/build.yaml"] if work.job.sources else names[:3]
        more = "" if work.job.sources else ", with the options that it had"
        stores[entry.key] = {
            "path": str(store.absolute()),
            "relative": os.path.relpath(store, output),
            "again": shlex.join(["packprep", "tokenize", *sources, "-o", str(store)]) + more,
        }
    return {"files": files}, stores
