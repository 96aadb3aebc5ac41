"""`labelquorum certify` and `expected-error`: how far answers can be trusted, by gold at random.

Both take a file of answers, a file of labels, a model's file, or a stream with its store.
"""

from collections.abc import Hashable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelquorum.cli.options import AsJson, check_labels, output_option, print_json
from labelquorum.cli.questions import MaybeStore, answer_rows, asked_model, read_answers
from labelquorum.errors import LabelError

if TYPE_CHECKING:
    from labelquorum.learn.analysis.certificate import Certificate
    from labelquorum.learn.analysis.expected_error import ExpectedError
    from labelquorum.learn.estimator import Estimator


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        show_default=False,
        help="Answers with the columns task, label and confidence, labels with task, worker and "
        "label, the file of a saved model, or the name of a stream with --store.",
    ),
]
AuditFile = Annotated[
    Path | None,
    typer.Option(
        "--audit",
        exists=True,
        dir_okay=False,
        metavar="GOLD",
        show_default="the gold of a stream",
        help="CSV with the columns task and label: true labels of tasks drawn at random, in the "
        "order drawn, that the model has not learned.",
    ),
]


def certify(
    source: Source,
    audit: AuditFile = None,
    error: Annotated[
        float, typer.Option(min=0, max=1, help="The share of wrong labels allowed in the end.")
    ] = 0.02,
    confidence: Annotated[
        float, typer.Option(min=0, max=1, help="The probability with which the bound holds.")
    ] = 0.95,
    output: Annotated[
        Path | None,
        output_option("CSV with the tasks a person must still see, the least sure first."),
    ] = None,
    store: MaybeStore = None,
    as_json: AsJson = False,
) -> None:
    """Say which answers may stand, and which tasks a person must still see.

    Draw tasks at random, let a person label them, and give these labels as
    --audit. Answers from some confidence on are then accepted, all other
    tasks go to people, and at most --error of all labels are wrong.

    The bound holds whenever you look: look after every label, and stop at
    the first certificate. Without enough gold there is none, and the number
    of gold labels that it takes is printed. Gold that people selected, such
    as disputed tasks, is no evidence: draw with shuf or your own lot.
    """
    found = _certificate(source, audit, store, error, confidence)
    if output is not None:
        from labelquorum.ingest.writers import replacing, write_rows

        rows = ({"task": task} for task in found.todo)
        with replacing(output) as beside, beside.open("wb") as target:
            write_rows(rows, {"task": set()}, target, "csv")
    if as_json:
        print_json(asdict(found) | {"todo": list(found.todo)})
        return
    typer.echo(str(found))


def expected_error(
    source: Source,
    audit: AuditFile = None,
    level: Annotated[
        float, typer.Option(min=0, max=1, help="How certain the interval must be.")
    ] = 0.95,
    store: MaybeStore = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the share of wrong answers, with an interval.

    Without --audit it is the model's own: the mean of 1 − confidence, right
    as far as the confidences are. With tasks drawn at random it is corrected
    on them (prediction-powered inference).
    """
    found = _expected_error(source, audit, store, level)
    if as_json:
        print_json(asdict(found))
        return
    typer.echo(str(found))


def _certificate(
    source: str, audit: Path | None, store: str | None, error: float, confidence: float
) -> "Certificate":
    if store is not None and audit is None:
        from labelquorum.store.store import Store

        with Store.look(store) as looked:
            return looked.stream(source).certificate(error, confidence)
    if store is None and _has_answers(source):
        from labelquorum.learn.analysis.certificate import certificate
        from labelquorum.learn.audit import audit_of

        tasks, labels, sure = _table(source, audit)
        found = certificate(sure, audit_of(tasks, labels, _truths(audit)), error, confidence)
        return found.named(tasks.__getitem__)
    with asked_model(source, store) as model:
        return model.certify(error, confidence, _in_ids(model, audit))


def _expected_error(
    source: str, audit: Path | None, store: str | None, level: float
) -> "ExpectedError":
    if store is not None and audit is None:
        from labelquorum.store.store import Store

        with Store.look(store) as looked:
            whole = looked.stream(source).expected_error(level)
        if whole is None:
            raise LabelError(f"Stream {source!r} has answered nothing yet. Send labels first.")
        return whole
    if store is None and _has_answers(source):
        from labelquorum.learn.analysis.expected_error import expected_error as estimate
        from labelquorum.learn.audit import audit_of

        tasks, labels, sure = _table(source, audit)
        return estimate(sure, audit_of(tasks, labels, _truths(audit)), level)
    with asked_model(source, store) as model:
        return model.expected_error(None, level, _in_ids(model, audit))


def _has_answers(source: str) -> bool:
    """Whether a file holds answers: labels have no confidence."""
    path = Path(source)
    if path.suffix.lower() not in (".csv", ".jsonl", ".ndjson", ".parquet"):
        return False
    return "confidence" in next(iter(answer_rows(path)), {})


def _table(source: str, audit: Path | None) -> tuple[list[Hashable], list[Hashable], list[float]]:
    """Tasks and labels of a file of answers, as text, and confidences; tasks in order of ids.

    Answers marked as gold are left out: they are the truth, whatever the model does.
    """
    rows = {
        str(task): (str(label), sure, is_gold)
        for task, label, sure, is_gold in read_answers(Path(source))
    }
    truths = _truths(audit)
    learned = next((task for task in truths if task in rows and rows[task][2]), None)
    if learned is not None:
        raise LabelError(
            f"{audit}: {source} answers task {learned!r} with the truth that was given as gold, so "
            "the answer is no evidence. Draw from the tasks whose gold there is 0."
        )
    tasks = sorted(task for task, (_, _, is_gold) in rows.items() if not is_gold)
    labels = [rows[task][0] for task in tasks]
    if audit is not None:
        check_labels(audit, truths.values(), labels)
    return list(tasks), list(labels), [rows[task][1] for task in tasks]


def _truths(audit: Path | None) -> dict[Hashable, Hashable]:
    from labelquorum.evaluation.datasets.load import read_truth

    return {} if audit is None else dict(read_truth(audit).items())


def _in_ids(model: "Estimator", audit: Path | None) -> dict[Hashable, Hashable] | None:
    """Truths of a file, which are text, with the ids and labels that the model knows."""
    truths = _truths(audit)
    tasks = {str(task): task for task in model.model_.fitted().open_items}
    labels: dict[str, Any] = {str(label): label for label in model.classes_.tolist()}
    if audit is not None:
        check_labels(audit, truths.values(), labels)
    known = {
        tasks.get(str(task), task): labels.get(str(label), label) for task, label in truths.items()
    }
    return known or None
