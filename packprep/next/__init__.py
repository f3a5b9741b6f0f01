"""The second edition, in the making: `python -m packprep.next`; not in wheels, pages or help."""
