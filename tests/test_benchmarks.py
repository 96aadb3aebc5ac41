"""The benchmarks run, at a size that measures nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def run_script(script: str, *arguments: str, **environment: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "LABELQUORUM_DATA"}
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        capture_output=True,
        text=True,
        env=variables | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_engine_benchmark_prints_one_json_object_and_its_report(tmp_path: Path) -> None:
    out = run_script("benchmarks/engine.py", "--quick", "--only", "history", "workers", "refit")
    result = json.loads(out)
    assert set(result["parts"]) == {"history", "workers", "refit"}
    assert {row["level"] for row in result["parts"]["history"]["latency"]} == {"door", "functions"}
    assert result["parts"]["history"]["memory"]["at_end_mb"] > 0
    assert 0 < result["parts"]["workers"]["state_bytes_per_worker"] < 2000
    [refit] = result["parts"]["refit"]["by_workers"]
    assert refit["labelquorum"]["emitted_error"] < refit["majority_vote_error"] + 5
    assert len(result["verdicts"]) == 7

    (tmp_path / "engine.json").write_text(out)
    page = tmp_path / "performance.md"
    run_script("benchmarks/report.py", str(tmp_path / "engine.json"), "-o", str(page))
    assert "## Latency against known workers" in page.read_text()
    assert "not yet (`stalls`)" in page.read_text()


def test_bulk_parts_are_measured_in_processes_and_shown_beside_their_targets(
    tmp_path: Path,
) -> None:
    bulk = ("stalls", "fit", "csv", "classes")
    out = run_script("benchmarks/engine.py", "--quick", "--only", *bulk)
    parts = json.loads(out)["parts"]
    assert parts["stalls"]["chunks"] == 20
    assert parts["fit"]["labels"] == 100_000 and parts["fit"]["peak_mb"] > 50
    for side in ("labelquorum", "crowdkit"):
        assert parts["csv"][side]["error"] < 5 and parts["csv"][side]["peak_mb"] > 50
    for name in ("dawid_skene", "crowdkit_drop_in", "bila"):
        assert parts["classes"][name]["error"] < 20

    (tmp_path / "engine.json").write_text(out)
    page = tmp_path / "performance.md"
    run_script("benchmarks/report.py", str(tmp_path / "engine.json"), "-o", str(page))
    assert not any(f"not yet (`{part}`)" in page.read_text() for part in bulk)


def test_a_process_that_fails_is_reported_with_its_last_line(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import bulk

    ended = bulk.run_measured([sys.executable, "-c", "raise MemoryError('too much')"])
    assert ended["failed"] == "MemoryError: too much" and ended["peak_mb"] > 0


def test_the_gpu_benchmark_runs_on_the_processor_too() -> None:
    environment = {"JAX_PLATFORMS": "cpu", "LABELQUORUM_ENGINE": "jax"}
    result = json.loads(run_script("benchmarks/gpu.py", "--quick", **environment))
    assert result["labels"] == 20_000 and result["labels_per_second"] > 0 and result["error"] < 2
    assert result["labels_that_differ_from_the_default_engine"] == 0
    assert result["largest_difference_of_a_probability"] < 1e-6


def test_the_service_benchmark_prints_one_json_object_and_its_report(tmp_path: Path) -> None:
    out = run_script(
        "benchmarks/service.py",
        "--quick",
        "--seconds",
        "2",
        "--only",
        "batches",
        "restart",
        "limit",
    )
    result = json.loads(out)
    load, restart = result["parts"]["batches"], result["parts"]["restart"]
    assert load["requests"] == 8 and load["refused"] == 0
    assert 0 < load["p50_ms"] <= load["p99_ms"] <= load["max_ms"]
    assert load["learner_cpu_ms_per_request"] == load["cpu_us_per_request"][-1] / 1000
    limit = result["parts"]["limit"]
    assert [step["offered_labels_per_second"] for step in limit["steps"]][:1] == [500]
    assert limit["held_labels_per_second"] == limit["steps"][-1]["labels_per_second"]
    assert restart["items"] == 5000 and restart["labels"] == 15_000
    assert len(result["verdicts"]) == 4

    (tmp_path / "service.json").write_text(out)
    page = tmp_path / "load.md"
    run_script("benchmarks/service_report.py", str(tmp_path / "service.json"), "-o", str(page))
    assert "## Starting on a full store" in page.read_text()
    assert "## Until it breaks" in page.read_text()


def test_the_benchmark_of_large_bodies_tells_latency_and_memory() -> None:
    out = run_script("benchmarks/large_bodies.py", "--senders", "2", "--megabytes", "0.5")
    parts = json.loads(out)["parts"]
    assert [part["kind"] for part in parts] == ["names", "different names", "labels"]
    assert [list(part["statuses"]) for part in parts] == [["422"], ["422"], ["200"]]
    assert all(part["healthz_ms"]["max"] < 60_000 for part in parts)
    assert all(part["peak_mb"] < 1_000 for part in parts)


def test_the_benchmark_of_questions_asks_each_and_all_are_answered() -> None:
    out = run_script("benchmarks/questions.py", "--scale", "0.0002")
    questions = json.loads(out)["questions"]
    assert len(questions) > 25 and {one["status"] for one in questions} == {200}
