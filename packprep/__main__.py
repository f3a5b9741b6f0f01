"""`packprep`, and `python -m packprep`."""

import gc

from packprep.hugepages import begin_again


def start() -> None:
    begin_again()
    gc.set_threshold(100_000)  # what libraries make stays: looking for garbage in it took a tenth of a short build
    from packprep.cli import main

    main()


if __name__ == "__main__":
    start()
