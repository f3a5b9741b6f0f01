"""A worker process whose tokenizer some texts kill.

`python -m tests.faults.poisoned_worker STAGING`.

<segfault> ends it by SIGSEGV, <oom> by SIGKILL as the system does, <hang> never ends, <leak> takes
memory. A text of the form <once PATH> does what the file PATH says, and takes the file away: the
next try goes well.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from packprep.engines import backends
from packprep.execute import worker


def _suffer(text: str) -> None:
    if (once := re.search(r"<once (\S+)>", text)) is not None:
        order = Path(once[1])
        if order.exists():
            what = order.read_text()
            order.unlink()
            _suffer(what)
    if "<segfault>" in text:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "<oom>" in text:
        os.kill(os.getpid(), signal.SIGKILL)
    if "<hang>" in text:
        time.sleep(1000)
    if "<leak>" in text:
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20) * 50))
            time.sleep(0.01)


def main() -> None:
    real = backends.HfEngine.encode

    def encode(self: backends.HfEngine, texts: Any) -> Any:
        for text in texts.to_pylist():
            if "<" in text:
                _suffer(text)
        return real(self, texts)

    backends.HfEngine.encode = encode  # type: ignore[method-assign]
    worker.main(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
