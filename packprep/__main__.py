"""Entry point of `packprep` and `python -m packprep`."""

import atexit
import gc

from packprep.support.linux import begin_with_huge_pages


def start() -> None:
    """Run the command line, with fewer garbage collections."""
    begin_with_huge_pages()
    # Objects of imported libraries stay alive. Searching them for garbage would take a third of a
    # short build, most of it when Python exits.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    from packprep.cli.main import main
    from packprep.cli.streams import outlive_readers

    outlive_readers()
    main()


if __name__ == "__main__":
    start()
