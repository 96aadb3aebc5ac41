"""Results of the benchmark: kept, found again, shown."""

import pytest

from labelquorum.errors import LabelError
from labelquorum.evaluation.benchmark import Protocol
from labelquorum.evaluation.results import Results, error_table, score_table, shared_sets

PROTOCOL = Protocol(orders=3)


def row(dataset="rte", method="bila", error=7.0, **more):
    return {
        "dataset": dataset,
        "method": method,
        "kind": "online",
        "chunk_items": 50,
        "order": "random",
        "arrival": "items",
        "warmup_items": 0,
        "time_cap": 300.0,
        "data_sha256": "abc",
        "orders": 3,
        "capped": False,
        "emitted_error": error,
        "emitted_error_sd": 0.5,
        "final_error": error - 1,
        "log_loss": 0.3,
        "calibration_error": 5.0,
        "batch_gap": None,
        "latency_p50_ms": 2.0,
        "latency_p99_ms": 4.0,
        **more,
    }


def without_figures(reason, **more):
    facts = {name: row()[name] for name in list(row())[:9]}
    return {**facts, "reason": reason, **more}


def test_rows_are_there_after_a_restart(tmp_path):
    Results(tmp_path).add(row())
    again = Results(tmp_path)
    assert again.rows() == [row()]
    assert again.has("rte", "bila", PROTOCOL, "abc")
    assert not again.has("rte", "dawid_skene", PROTOCOL, "abc")
    assert not again.has("web", "bila", PROTOCOL, "abc")
    assert not again.has("rte", "bila", PROTOCOL, "other labels")


def test_another_protocol_is_another_row(tmp_path):
    results = Results(tmp_path)
    results.add(row())
    results.add(row(chunk_items=200, error=6.0))
    results.add(row(error=6.5))
    assert not results.has("rte", "bila", PROTOCOL._replace(chunk_items=1), "abc")
    assert not results.has("rte", "bila", PROTOCOL._replace(orders=10), "abc")
    assert [r["emitted_error"] for r in results.rows(PROTOCOL)] == [6.5]
    assert len(Results(tmp_path).rows()) == 2


def test_a_reason_is_tried_again_unless_it_was_the_time(tmp_path):
    results = Results(tmp_path)
    results.add(without_figures("Crowd-Kit is not installed"))
    assert not results.has("rte", "bila", PROTOCOL, "abc")
    results.add(without_figures("stopped after 300 s"))
    assert results.has("rte", "bila", PROTOCOL, "abc")
    assert not results.has("rte", "bila", PROTOCOL._replace(time_cap=600.0), "abc")


def test_orders_that_were_cut_short_are_run_again_only_with_more_time(tmp_path):
    results = Results(tmp_path)
    results.add(row(capped=True, orders=2))
    assert results.has("rte", "bila", PROTOCOL, "abc")
    assert not results.has("rte", "bila", PROTOCOL._replace(time_cap=600.0), "abc")
    results.add(row(method="refit:glad", kind="refit", orders=1))
    assert not results.has("rte", "refit:glad", PROTOCOL, "abc")
    assert results.has("rte", "refit:glad", PROTOCOL._replace(refit_orders=1), "abc")
    assert "(2 only)" in error_table(results.rows(), ["bila"])


def test_a_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "rte.json").write_text("{}")
    with pytest.raises(LabelError, match=r"rte\.json: this is no file of benchmark results"):
        Results(tmp_path)


def test_overlapping_sets_count_once_in_a_mean():
    rows = [row("rte", error=8.0), row("snow_joy", error=2.0), row("snow_fear", error=4.0)]
    assert "| 5.50 |" in score_table(rows)  # (8 + (2 + 4) / 2) / 2


def test_means_are_over_the_sets_that_all_did():
    rows = [row(name, method) for name in ("rte", "web") for method in ("bila", "majority_vote")]
    rows.append(without_figures("two classes only", method="sbic", dataset="web"))
    rows.append(row("rte", "sbic", error=9.0))
    assert shared_sets(rows) == ["rte", "web"]
    sbic = next(line for line in score_table(rows).splitlines() if "`sbic`" in line)
    assert "9.00" not in sbic and "| +2.0 | 1 |" in sbic


def test_the_least_error_of_a_set_is_bold():
    table = error_table([row(error=7.0), row(method="glad", error=6.0)], ["bila", "glad", "ebcc"])
    assert "| rte | 7.00 ± 0.50 | **6.00** ± 0.50 |" in table
