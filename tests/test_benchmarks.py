"""The benchmarks run, at a size that measures nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
