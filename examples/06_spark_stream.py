"""Files that arrive in a folder, aggregated by Spark into a store; ready for spark-submit.

Each micro-batch is counted once, whenever the driver ends: run it again, and it goes on.

    python examples/06_spark_stream.py [INCOMING] [STATE]
    spark-submit examples/06_spark_stream.py /data/incoming /data/state

Without folders it makes a small simulated crowd and reads that. `labelquorum export` and
`labelquorum serve` show the same store.
"""

import sys
from pathlib import Path

import labelquorum as lq
from labelquorum import Rules, Store
from labelquorum.evaluation import class_conditional_crowd, label_table

incoming, state = (Path(name) for name in (sys.argv[1:] or ["spark-incoming", "spark-state"]))

if not incoming.exists():  # three files of 100 tasks each
    incoming.mkdir()
    table = label_table(class_conditional_crowd(300, 20, 3, labels_per_item=5, seed=7))
    rows = list(zip(table.item_ids, table.worker_ids, table.labels, strict=True))
    for number in range(3):
        lines = [",".join(map(str, row)) for row in rows[number * 500 : (number + 1) * 500]]
        (incoming / f"{number}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")

spark = lq.spark.session()
spark.sparkContext.setLogLevel("ERROR")
labels = (
    spark.readStream.schema("task string, worker string, label int")
    .option("maxFilesPerTrigger", 1)  # so much is a micro-batch
    .csv(str(incoming))
)
feed = lq.spark.aggregate_stream(
    labels,
    str(state / "store"),
    "birds",
    checkpoint=str(state / "checkpoint"),  # beside the store: keep both, or neither
    sink=str(state / "answers"),  # and as Parquet, a folder for each micro-batch
    rules=Rules(labels_per_item=5, chunk_items=50),
    trigger={"availableNow": True},  # leave it out to wait for more files
)
feed.wait()

answers = spark.read.parquet(str(state / "answers"))
with Store.look(state / "store") as store:
    stream = store.stream("birds")
    print(f"{stream.count()['answered_items']} tasks answered in {len(stream.chunks())} chunks")
    print(f"{answers.count()} answers under {state / 'answers'}, such as")
answers.orderBy("confidence").show(5)
spark.stop()
