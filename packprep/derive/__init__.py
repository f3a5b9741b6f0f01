"""Makes an output from finished outputs: merged, cut again, renamed, materialized, pushed."""
