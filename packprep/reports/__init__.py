"""An output in; page, plots, numbers, comparison and CI gate out."""
