"""`python -m packprep.next`."""

import atexit
import gc

# Objects of imported libraries stay alive. Searching them for garbage would take a third of a short
# build, most of it when Python exits.
gc.set_threshold(100_000)
atexit.register(gc.freeze)

if __name__ == "__main__":
    from .cli.main import main

    main()
