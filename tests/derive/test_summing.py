from typing import cast

from packprep.derive.summing import summed, summed_report
from packprep.schemas.report import DocumentsPerPack, Report


def test_numbers_are_added_key_by_key_and_tables_inside_tables_too() -> None:
    tables = [{"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"d": 5}}]
    assert summed(tables) == {"a": 4, "b": {"c": 2, "d": 5}}
    assert summed([]) == {}


LEDGER = {
    **dict.fromkeys(("overlap", "continuation_bos", "filler", "truncated"), 0),
    "tokens_in": 50,
    "tokens_packed": 50,
    "dropped": {},
}
SPREAD: DocumentsPerPack = {"p50": 1, "p95": 1, "max": 1}


def report(rows: int, bos_rate: float, loss_tokens: int) -> Report:
    documents = {"in": rows + 3, "empty": 1, "skipped": {"null": 2}, "dropped": {}}
    table = {
        "documents": documents,
        "tokens": LEDGER,
        "tokens_lost": 0,
        "packs": 10,
        "max_length": 10,
        "segments": 10,
        "bound": 9,
        "gap": 1,
        "bias": 0.0,
        "straggler": 1.0,
        "splits": {},
        "windows": [],
        "sources": [],
        "seconds": {"total": 1.0},
        "peak_memory_bytes": 1,
        "bos_rate": bos_rate,
        "eos_rate": 1.0,
        "loss_tokens": loss_tokens,
        "loss_utilization": loss_tokens / 100,
    }
    return cast("Report", table)


def test_rates_are_of_all_documents_with_tokens_and_loss_tokens_are_added() -> None:
    both = summed_report([report(30, 1.0, 40), report(10, 0.0, 20)], SPREAD, [])
    assert (both["bos_rate"], both["eos_rate"]) == (0.75, 1.0)
    assert (both["loss_tokens"], both["loss_utilization"]) == (60, 0.3)


def test_an_older_report_without_rates_gives_none() -> None:
    older = report(10, 0.0, 20)
    del older["bos_rate"]
    for reports in ([older, report(30, 1.0, 40)], [report(30, 1.0, 40), older]):
        assert "bos_rate" not in summed_report(reports, SPREAD, [])
