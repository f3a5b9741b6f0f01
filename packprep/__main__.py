"""`packprep`, and `python -m packprep`."""

from packprep.hugepages import begin_again


def start() -> None:
    begin_again()
    from packprep.cli import main

    main()


if __name__ == "__main__":
    start()
