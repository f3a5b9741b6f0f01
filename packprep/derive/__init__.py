"""Makes outputs and stores from finished ones: merged, cut again, renamed, materialized, pushed."""
