"""An output in; page, numbers, comparison and CI gate out."""
