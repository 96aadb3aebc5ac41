"""Four partitions beside one piece: the error of both, on every public set of some size.

    LABELQUORUM_DATA=DIR python3 run.py spark experiments/spark/tolerance.py [--save]

Sets of more than 5,000 labels with known truth are aggregated by `lq.spark.aggregate` in four
partitions, and by the library. `--save` adds to results/tolerance.json, and leaves out what is
there unless `--again` is given.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow

import labelquorum as lq
from labelquorum.errors import LabelQuorumError
from labelquorum.evaluation import count_dataset, data_folder, list_datasets, read_dataset

HERE = Path(__file__).resolve().parent
COMMAND = "LABELQUORUM_DATA=DIR python3 run.py spark experiments/spark/tolerance.py --save"
LEAST, PARTITIONS = 5_000, 4


def error(answers: dict[Any, Any], truth: dict[Any, Any]) -> float:
    """Points of error, of the items that were answered."""
    scored = [item for item in truth if item in answers]
    return 100 * sum(answers[item] != truth[item] for item in scored) / len(scored)


def measure(spark: Any, name: str, method: str) -> dict[str, Any] | None:
    try:
        dataset = read_dataset(name)
    except LabelQuorumError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
    counts = count_dataset(dataset)
    if counts.n_labels <= LEAST or not dataset.truth:
        return None
    labels, truth = dataset.table, dict(dataset.truth)
    columns = {"task": labels.item_ids, "worker": labels.worker_ids, "label": labels.labels}
    table = pyarrow.table({role: list(map(str, values)) for role, values in columns.items()})
    whole = dict(lq.estimator(method).fit(table).labels_.items())
    frame = spark.createDataFrame(table)
    found = lq.spark.aggregate(frame, method, partitions=PARTITIONS)
    reply = found.answers.toArrow()
    parts = dict(zip(reply["task"].to_pylist(), reply["label"].to_pylist(), strict=True))
    truth = {str(item): str(label) for item, label in truth.items()}
    one, other = error(whole, truth), error(parts, truth)
    row = {"dataset": name, "method": method, "labels": counts.n_labels, "rounds": found.rounds}
    differ = sum(whole[item] != label for item, label in parts.items()) / len(parts)
    return row | {
        "one_piece": round(one, 2),
        "four_partitions": round(other, 2),
        "difference": round(other - one, 2),
        "answers_that_differ": round(100 * differ, 2),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["bila", "dawid_skene"])
    parser.add_argument("--only", nargs="+", default=None, metavar="SET")
    parser.add_argument("--again", action="store_true", help="measure also what was measured")
    parser.add_argument("--save", action="store_true", help="add to results/tolerance.json")
    options = parser.parse_args(arguments)
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = lq.spark.session("local[2]", settings | {"spark.sql.shuffle.partitions": 4})
    spark.sparkContext.setLogLevel("ERROR")
    file = HERE / "results" / "tolerance.json"
    rows = json.loads(file.read_text())["rows"] if options.save and file.exists() else []
    done = set() if options.again else {(row["dataset"], row["method"]) for row in rows}
    for name, method in product(options.only or list_datasets(data_folder()), options.methods):
        row = None if (name, method) in done else measure(spark, name, method)
        if row is None:
            continue
        print(json.dumps(row), flush=True)
        rows = [old for old in rows if (old["dataset"], old["method"]) != (name, method)]
        rows.append(row)
        if options.save:
            file.parent.mkdir(exist_ok=True)
            made = {"command": COMMAND, "version": lq.__version__}
            text = json.dumps({"made": made, "rows": rows}, indent=1) + "\n"
            file.write_text(text, encoding="utf-8")
    spark.stop()
    return 0 if all(abs(row["difference"]) <= 0.3 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
