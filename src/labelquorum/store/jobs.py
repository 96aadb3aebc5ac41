"""Jobs: what is too long for one transaction is recorded first, and then done in steps.

A step notes how far the job is in its own transaction, and the last one removes the record. After a
kill, `resume` goes on; the learning loop calls it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import LabelError, StateError
from labelquorum.store.batch import decode, encode
from labelquorum.store.database import schema
from labelquorum.store.failpoints import fault
from labelquorum.store.stream_ref import StreamRef

LAST_STEPS = "last"
"""In the progress of a forget: no chunk is cut until it is done, or the worker might come again."""


class Job(NamedTuple):
    """What was recorded, and how far it is."""

    id: int
    kind: str
    body: Any
    progress: Counter[str]


class Jobs:
    """The jobs of a stream, by kind; one thread of a process does them."""

    def __init__(self, ref: StreamRef, kinds: Mapping[str, Callable[[Job], None]]) -> None:
        self._ref, self._kinds = ref, kinds

    def do(
        self, kind: str, body: Any, check: Callable[[sa.Connection], None] = lambda connection: None
    ) -> Counter[str]:
        """Record a job, or find it recorded, and do it; returns what it came to.

        `check` raises an error before a job is recorded that has nothing to do, by now.
        """
        with self._ref.store.working(self._ref.key):
            with self._ref.write() as connection:
                self._ref.row(connection)  # or it was deleted
                recorded = self._recorded(connection)
                job = next((one for one in recorded if (one.kind, one.body) == (kind, body)), None)
                if job is None:
                    check(connection)
                    job = Job(
                        max((one.id for one in recorded), default=0) + 1, kind, body, Counter()
                    )
                    row = {"stream": self._ref.key, "id": job.id, "kind": kind}
                    row |= {"body": encode(body), "progress": encode({})}
                    connection.execute(schema.jobs.insert().values(row))
            self._run(job)
        return job.progress

    def resume(self) -> bool:
        """Do the jobs that are recorded, unless another thread does; returns whether one was done.

        After an error the others are done, and the first error is raised.
        """
        lock, errors, is_done = self._ref.store.working(self._ref.key), list[Exception](), False
        if lock.acquire(blocking=False):
            try:
                with self._ref.read() as connection:
                    recorded = self._recorded(connection)
                for job in recorded:
                    try:
                        self._run(job)
                        is_done = True
                    except Exception as error:
                        errors.append(error)
            finally:
                lock.release()
        if errors:
            raise errors[0]
        return is_done

    def _run(self, job: Job) -> None:
        try:
            self._kinds[job.kind](job)
        except (LabelError, StateError):  # it would fail for ever
            with self._ref.write() as connection:
                self.note(connection, job, done=True)
            raise

    def note(self, connection: sa.Connection, job: Job, done: bool = False) -> None:
        """Note in the transaction of a step how far a job is, or that it is done."""
        its = (schema.jobs.c.stream == self._ref.key, schema.jobs.c.id == job.id)
        noted = schema.jobs.update().where(*its).values(progress=encode(job.progress))
        connection.execute(schema.jobs.delete().where(*its) if done else noted)
        fault("before_job_commit")

    def _recorded(self, connection: sa.Connection) -> list[Job]:
        jobs = schema.jobs.c
        found = connection.execute(
            sa.select(jobs.id, jobs.kind, jobs.body, jobs.progress)
            .where(jobs.stream == self._ref.key)
            .order_by(jobs.id)
        )
        return [Job(*row[:2], decode(row.body), Counter(decode(row.progress))) for row in found]
