"""Do two versions answer alike? The emitted answers of `BiLA()` on every data set, compared.

    LABELQUORUM_DATA=… python3 run.py python benchmarks/answers.py write before.npz   # one version
    LABELQUORUM_DATA=… python3 run.py python benchmarks/answers.py compare before.npz # another

Data sets are streamed in the order of their files, in chunks of 50 tasks; an answer is the one
given when its chunk came. A row per data set goes to standard output: tasks, labels that differ,
the largest and the 99.9 % quantile of the difference of a probability, and the error of both
versions where truth is known.
"""

import sys
from pathlib import Path

import numpy as np

import labelquorum as lq
from labelquorum.evaluation import data_folder, list_datasets, read_dataset

CHUNK_ITEMS = 50


def emitted(name):
    """Tasks, labels, their probabilities, and which of them are right; all as text or numbers."""
    dataset = read_dataset(name)
    model = lq.BiLA()
    tasks, labels, confidence = [], [], []
    for chunk in lq.cut_chunks([dataset.table], CHUNK_ITEMS):
        model.partial_fit(chunk)
        tasks += map(str, model.labels_.index)
        labels += map(str, model.labels_)
        confidence.append(model.probas_.max(axis=1).to_numpy())
    truth = {str(task): str(label) for task, label in dataset.truth.items()}
    pairs = zip(tasks, labels, strict=True)
    right = [int(truth[task] == label) if task in truth else -1 for task, label in pairs]
    return np.array(tasks), np.array(labels), np.concatenate(confidence), np.array(right)


def main(verb, file):
    saved, before = {}, {} if verb == "write" else np.load(file)
    if verb == "compare":
        print(
            "| data set | tasks | differ, % | probability: largest | 99.9 % | error before | now |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|")
    for name in list_datasets(data_folder()):
        if not read_dataset(name).table.labels:  # the truth alone
            continue
        try:
            answers = emitted(name)
        except lq.LabelQuorumError as error:  # it has no labels, or grades that are no classes
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(f"{name}: {len(answers[0]):,} answers", file=sys.stderr, flush=True)
        saved |= {f"{name}/{n}": part for n, part in enumerate(answers)}
        if verb == "compare" and f"{name}/0" in before:
            old = [before[f"{name}/{n}"] for n in range(4)]
            assert (old[0] == answers[0]).all(), "the versions answered other tasks"
            moved = np.abs(old[2] - answers[2])
            known = answers[3] >= 0
            errors = [100 * (1 - part[3][known].mean()) for part in (old, answers) if known.any()]
            cells = [
                f"{len(moved):,}",
                f"{100 * np.mean(old[1] != answers[1]):.3f}",
                f"{moved.max():.1e}",
                f"{np.quantile(moved, 0.999):.1e}",
                *([f"{error:.2f}" for error in errors] or ["", ""]),
            ]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if verb == "write":
        np.savez_compressed(file, **saved)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "compare"):
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
