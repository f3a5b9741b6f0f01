"""`packprep`, and `python -m packprep`."""

import atexit
import gc

from packprep.support.linux import begin_with_huge_pages


def start() -> None:
    begin_with_huge_pages()
    # What libraries make stays. Looking for garbage in it takes a third of a short build, most of
    # it when Python ends.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    from packprep.cli.main import main

    main()


if __name__ == "__main__":
    start()
