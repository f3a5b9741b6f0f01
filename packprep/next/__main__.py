"""`python -m packprep.next`."""

from .cli.main import main

main()
