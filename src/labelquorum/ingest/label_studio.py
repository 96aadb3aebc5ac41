"""What Label Studio's webhooks say: labels, corrections, and annotations that are gone.

A payload goes in, plain values come out; nothing is kept here. An annotation of a single choice is
one label: the task's id, the id of the user who completed it, the choice. Label Studio's word for
the moment an annotation was last changed tells its versions apart, so each has a key of its own,
and a payload that comes twice counts once.

- Created and updated annotations are labels; an update is the same annotation in a later version.
- One that was skipped or holds no choice says nothing. What it said before is taken back.
- One with several choices is refused, and changes nothing; among others it is counted and left out.
- A deletion holds the annotation's number and nothing else, so whoever took the label in has to
  find it again by its key.
- Other events (of tasks, projects, label links) say nothing about labels, and are no error.
- A JSON export is read as if each annotation had just been created. So what a webhook missed can
  be sent later, and what had come counts once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from labelquorum.errors import LabelError
from labelquorum.ingest.labels import LabelEvent
from labelquorum.ingest.validate import shown

KEY_PREFIX = "label-studio "
"""So begins the key of every version, and no key that a client may choose."""

_ONE, _MANY = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED"), "ANNOTATIONS_CREATED"
_DELETED = "ANNOTATIONS_DELETED"
_EXPORT = "export"


class Version(NamedTuple):
    """An annotation as it was left by a change."""

    annotation: str
    """The key of all its versions begins so."""
    key: str
    """Its own; later versions sort after earlier ones."""
    event: LabelEvent | None
    """What it says; None if it says nothing, and what it said before does not hold."""


class Heard(NamedTuple):
    """What a payload means."""

    action: str
    versions: Sequence[Version]
    deleted: Sequence[str]
    """The beginnings of the keys of annotations that are gone."""
    skipped: Mapping[str, int]
    """What says nothing, by reason."""


def read_label_studio(payload: Any, control: str | None = None, task: str | None = None) -> Heard:
    """Say what the payload of a webhook, or a JSON export, means for the labels.

    Parameters
    ----------
    payload
        What Label Studio sent, decoded.
    control
        The name of the `Choices` whose choice is the label; needed where there are several.
    task
        The field of a task's data that holds its id; Label Studio's own number unless given.

    Examples
    --------
    >>> choice = {"from_name": "bird", "type": "choices", "value": {"choices": ["owl"]}}
    >>> annotation = {"id": 7, "task": 3, "project": 1, "completed_by": 4, "result": [choice]}
    >>> payload = {"action": "ANNOTATION_CREATED", "annotation": annotation}
    >>> [version.event for version in read_label_studio(payload).versions]
    [LabelEvent(item_id=3, worker_id=4, label='owl', weight=1.0, group=None, timestamp=None)]
    """
    project: Any = None
    if isinstance(payload, list):
        action = _EXPORT
    elif isinstance(payload, dict) and isinstance(payload.get("action"), str):
        action, project = payload["action"], payload.get("project")
    else:
        raise LabelError(
            "Label Studio: a webhook sends a JSON object with an action, and an export is a list "
            f"of tasks. Got {shown(payload)}. Check what is sent to this address."
        )
    if action == _DELETED:
        return _gone(payload, project)
    if action not in (*_ONE, _MANY, _EXPORT):
        return Heard(action, [], [], {"no annotation": 1})
    chosen = _control(project, control)
    versions: list[Version] = []
    skipped = Counter[str]()
    refused: list[LabelError] = []
    for annotation, data in _annotations(payload, action):
        try:
            version, reason = _version(annotation, data, chosen, task)
        except LabelError as error:
            refused.append(error)
            continue
        versions.append(version)
        if reason:
            skipped[reason] += 1
    if refused and not versions:
        raise refused[0]
    if refused:  # among others, one that is no label does not keep them out
        skipped["no label"] = len(refused)
    return Heard(action, versions, [], dict(skipped))


def _gone(payload: Mapping[str, Any], project: Any) -> Heard:
    """Which annotations were deleted; Label Studio does not always say."""
    found = payload.get("annotations")
    if not isinstance(found, list) or not found:
        return Heard(_DELETED, [], [], {"deletion that names no annotation": 1})
    if not isinstance(project, dict):
        raise _malformed("a deletion names its project", project)
    for one in found:
        if not isinstance(one, dict):
            raise _malformed("a deleted annotation is an object with an id", one)
    return Heard(_DELETED, [], [_beginning(project.get("id"), one.get("id")) for one in found], {})


def _annotations(payload: Any, action: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each annotation of a payload, and the data of its task."""
    if action == _EXPORT:
        pairs = [(one, part) for part in payload for one in _list(_dict(part).get("annotations"))]
    elif "annotation" not in payload:
        raise LabelError(
            f"Label Studio: the event {action} came without its annotation. "
            "Switch on 'Send payload' in the settings of the webhook."
        )
    elif action == _MANY:
        of_task = {part.get("id"): part for part in map(_dict, _list(payload.get("task")))}
        found = map(_dict, _list(payload["annotation"]))
        pairs = [(one, of_task.get(one.get("task"), {})) for one in found]
    else:
        pairs = [(payload["annotation"], payload.get("task"))]
    for annotation, part in pairs:
        yield _dict(annotation), part.get("data") if isinstance(part, dict) else None


def _control(project: Any, control: str | None) -> str | None:
    """Which `Choices` is meant; None where a payload does not say which there are."""
    known = project.get("parsed_label_config") if isinstance(project, dict) else None
    if not isinstance(known, dict):
        return control
    choices = [
        str(name)
        for name, part in known.items()
        if isinstance(part, dict) and str(part.get("type")).lower() == "choices"
    ]
    if control is None and len(choices) == 1:
        return choices[0]
    if control not in choices:
        rule = "its labelling interface needs one <Choices> that is meant"
        got = f"Got {shown(choices)}" + (f" and control={control!r}" if control else "")
        raise LabelError(
            f"Label Studio project {project.get('id')}: {rule}. {got}. "
            "Name one at the end of the webhook's address, such as ?control=NAME."
        )
    return control


def _version(
    annotation: dict[str, Any], data: Any, control: str | None, task: str | None
) -> tuple[Version, str | None]:
    """One annotation in one version, and why it says nothing, if so."""
    beginning = _beginning(annotation.get("project"), annotation.get("id"))
    moment = _moment(annotation.get("updated_at"))
    where = f"Label Studio annotation {annotation['id']}"

    def nothing(reason: str) -> tuple[Version, str]:
        return Version(beginning, beginning + moment, None), reason

    if annotation.get("was_cancelled"):
        return nothing("skipped by the annotator")
    worker = annotation.get("completed_by")
    worker = worker.get("id") if isinstance(worker, dict) else worker
    if worker is None:
        return nothing("no annotator")
    label = _choice(_list(annotation.get("result")), control, where)
    if label is None:
        return nothing("no choice")
    item = annotation.get("task")
    if task is not None:
        item = data.get(task) if isinstance(data, dict) else None
        if not isinstance(item, str | int | float):
            raise LabelError(
                f"{where}: the task's id is its field {task!r}, text or a number. Got "
                f"{shown(item)}. Correct the tasks, or take ?task= from the webhook's address."
            )
    event = LabelEvent(item, worker, label, timestamp=moment or None)
    return Version(beginning, beginning + moment, event), None


def _choice(result: Sequence[Any], control: str | None, where: str) -> str | None:
    """The one choice of an annotation; None where there is none."""
    found = [
        part
        for part in map(_dict, result)
        if part.get("type") == "choices" and control in (None, part.get("from_name"))
    ]
    names = sorted({str(part.get("from_name")) for part in found})
    if len(names) > 1:
        raise LabelError(
            f"{where}: there are choices for {names}, and one is meant. "
            "Name it at the end of the webhook's address, such as ?control=NAME."
        )
    choices = [one for part in found for one in _list(_dict(part.get("value")).get("choices"))]
    if len(choices) > 1:
        raise LabelError(
            f"{where}: a label is one choice. Got {shown(choices)}. "
            'Set choice="single" and no perRegion in the labelling interface.'
        )
    if not choices:
        return None
    [label] = choices
    if not isinstance(label, str):
        raise _malformed("a choice is text", label)
    return label


def _beginning(project: Any, annotation: Any) -> str:
    """How the keys of all versions of an annotation begin; blanks end both numbers."""
    for what, number in (("project", project), ("annotation", annotation)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise _malformed(f"the id of the {what} is a whole number", number)
    return f"{KEY_PREFIX}{project} {annotation} "


def _moment(value: Any) -> str:
    """When it was changed, in one spelling, so that later ones sort after earlier ones."""
    if value is None:
        return ""
    try:
        moment = datetime.fromisoformat(value)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (OverflowError, TypeError, ValueError) as error:
        raise _malformed("updated_at is a time in ISO's spelling", value) from error
    return moment.isoformat(timespec="microseconds")


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed("a JSON object is expected", value)
    return value


def _list(value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise _malformed("a JSON list is expected", value)
    return value or []


def _malformed(rule: str, value: Any) -> LabelError:
    return LabelError(
        f"Label Studio: {rule}. Got {shown(value)}. "
        "Send what Label Studio's webhooks send, unchanged."
    )
