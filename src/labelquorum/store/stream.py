"""One durable stream: labels are accepted, chunks are cut, the model advances.

Five rules (`docs/store.md`). Labels are accepted with their key and the position of their source in
one transaction. A cut is a transaction of its own. The update is a pure function, outside any
transaction. One transaction then puts the next model in place of the one it was made from, writes
the answers, and deletes the raw labels. So a chunk is applied once or not at all, and what was
acknowledged is never lost.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labelquorum.errors import LabelError, LabelQuorumError, StateError
from labelquorum.ingest.labels import LabelSpace
from labelquorum.store.accept import Acceptor, Revised, Revision
from labelquorum.store.apply import Applied, Applier
from labelquorum.store.batch import Batch, Receipt, Submission, check_names, encode_id
from labelquorum.store.chunker import Chunker, Cut
from labelquorum.store.erasure import erase, is_known
from labelquorum.store.gold import GoldLabels
from labelquorum.store.jobs import Job, Jobs
from labelquorum.store.learner import Configuration
from labelquorum.store.queries import (
    AGREEMENT_WORKERS,
    JURY_WORKERS,
    Answer,
    GoldError,
    Queries,
    Recent,
    Undecided,
)
from labelquorum.store.rules import Rules
from labelquorum.store.stream_ref import StreamRef

if TYPE_CHECKING:
    from labelquorum.learn.analysis.certificate import Certificate, GoldSampling
    from labelquorum.learn.analysis.expected_error import ExpectedError
    from labelquorum.learn.estimator import Estimator
    from labelquorum.learn.model_file import Snapshot

POLL_SECONDS = 0.05
"""How often a job that waits for chunks looks whether the learning loop has applied them."""

REVISIONS_PER_COMMIT = 50
"""Of one transaction, which takes 0.1 s: others wait for its end."""


class Stream:
    """One stream of a store; made by `Store.create` and `Store.stream`."""

    def __init__(self, ref: StreamRef) -> None:
        self.ref = ref
        self._acceptor = Acceptor(ref)
        self._gold = GoldLabels(ref, self._acceptor)
        self._chunker = Chunker(ref, self._gold)
        self._applier = Applier(ref, self._gold)
        self._queries = Queries(ref)
        self._jobs = Jobs(ref, {"forget": self._forget, "withdraw": self._withdraw})

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.ref.name

    @property
    def configuration(self) -> Configuration:
        """The method and its settings."""
        return self.ref.configuration

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the method, by name."""
        return self.ref.settings

    @property
    def space(self) -> LabelSpace:
        """How labels are read and checked."""
        return self.ref.space

    @property
    def rules(self) -> Rules:
        """When chunks are cut and labels deleted."""
        with self.ref.read() as connection:
            return self.ref.rules(connection)

    # ── labels in ─────────────────────────────────────────────────────────────────────────

    def accept(
        self,
        labels: Any,
        key: str | None = None,
        source: str | None = None,
        position: str | None = None,
    ) -> Receipt:
        """Accept labels; once this returns they are durable.

        Parameters
        ----------
        labels
            What `BiLA.partial_fit` takes. A table with an error changes nothing.
        key
            The sender's idempotency key: the same table under it is accepted once.
        source, position
            How far a source was read with these labels, in the sender's own format.
        """
        return self._acceptor.accept(labels, key, source, position)

    def accept_all(
        self, submissions: Sequence[Submission | Batch]
    ) -> list[Receipt | LabelQuorumError]:
        """Accept several tables in one transaction (group commit), as if each had come alone.

        A table with an error has that error in place of a receipt; the others are not affected.
        """
        return self._acceptor.accept_all(submissions)

    def prepare(self, submission: Submission) -> Batch:
        """Read and check a submission, without the store."""
        return self._acceptor.prepare(submission)

    def position(self, source: str) -> str | None:
        """How far a source was read."""
        return self._acceptor.position(source)

    def retract(self, task: Hashable, worker: Hashable) -> int:
        """Delete a worker's labels of a task that is not cut yet; returns how many there were."""
        return self._acceptor.retract(task, worker)

    def revise_all(self, revisions: Sequence[Revision]) -> list[Revised | LabelQuorumError]:
        """Replace the labels of earlier versions, in one transaction; idempotent."""
        return self._acceptor.revise_all(revisions)

    def withdraw(self, versions: Sequence[Sequence[str]]) -> Mapping[str, int]:
        """Delete the labels of earlier versions, however many; idempotent.

        A version is the prefix of its keys, and its own. Returns how many labels are gone
        (`retracted`), and of how many this version or a later one had come (`outdated`).
        """
        once = dict.fromkeys(map(tuple, versions))
        for _, key in once:  # none is recorded before all are checked
            check_names(key=key)
        return self._jobs.do("withdraw", [list(one) for one in once])

    def _withdraw(self, job: Job) -> None:
        while (start := job.progress["done"]) < len(job.body):
            some = job.body[start : start + REVISIONS_PER_COMMIT]
            with self.ref.write() as connection:
                gone = self._acceptor.withdraw(connection, some)
                job.progress.update(done=len(some), **gone)
                self._jobs.note(connection, job, job.progress["done"] == len(job.body))

    def gold(self, truths: Any, key: str | None = None) -> Receipt:
        """Accept true labels, {task: label} or a Series indexed by task; `key` makes it idempotent.

        The receipt says how many count (`accepted`), and how many came when their task was closed
        (`late`). The same truth again changes nothing; another one replaces it.
        """
        return self._gold.accept(truths, key)

    # ── chunks ────────────────────────────────────────────────────────────────────────────

    def cut(self, flush: bool = False) -> Cut | None:
        """Cut a chunk if it is due, or with `flush` of what is there; None if there is none."""
        return self._chunker.cut(flush)

    def cut_some(self) -> list[Cut]:
        """Cut the chunks that are due, in one transaction; not all where they are many."""
        return self._chunker.cut_some()

    def backlog(self) -> tuple[list[int], int]:
        """The chunks that are cut and not applied, and how many are due to be cut now."""
        return self._chunker.backlog()

    def to_apply(self) -> list[int]:
        """The chunks that are cut and not applied, in order."""
        with self.ref.read() as connection:
            return self.ref.cut_chunks(connection)

    def change(self, **changes: Any) -> Rules:
        """Change some of the rules from now on; items that are ready stay so."""
        return self._chunker.change(**changes)

    def advance(self, chunk: Cut | int) -> Applied:
        """Learn from a chunk that was cut, answer it, and commit; idempotent.

        Chunks are applied in the order they were cut. One that cannot be learned from raises an
        error that names the reason; after three it is quarantined, its labels are kept, and the
        stream continues without it.
        """
        return self._applier.advance(chunk.id if isinstance(chunk, Cut) else chunk)

    def advance_some(self, on_chunk: Callable[[int], None] = lambda number: None) -> list[Applied]:
        """Learn from the chunks that were cut first, as if each were alone, and commit once."""
        return self._applier.advance_some(on_chunk)

    def failed(self, number: int, error: Exception) -> StateError:
        """Record that a chunk could not be learned from; the third time it is quarantined."""
        return self._applier.failed(number, error)

    def settle(self, flush: bool = False) -> list[Applied]:
        """Cut all that is due and apply all that is cut; also continues after a restart.

        A chunk that fails is tried again until it is quarantined.
        """
        self.resume()
        while self.cut(flush):
            pass
        return self._applier.apply_all()

    def forget(self, worker: Hashable) -> int:
        """Erase a worker: their row, their labels, their part in open items, their id.

        Chunks that are cut are applied first. What they contributed to shared numbers and to
        answers stays: it names nobody. Many labels are deleted in steps, and chunks are cut until
        the last ones; after a kill, calling it again or the learning loop goes on with the rest.

        Returns
        -------
        n_labels : raw labels of theirs that were deleted
        """
        name = encode_id(worker, "worker", "forget")

        def check(connection: Any) -> None:
            if not is_known(self.ref, connection, name):
                raise LabelError(
                    f"Stream {self.name!r}: worker {worker!r} is not known. Check the id."
                )

        with self.ref.read() as connection:  # who asks for a stranger waits for no other job
            check(connection)
        return self._jobs.do("forget", name, check)["labels"]

    def _forget(self, job: Job) -> None:
        erase(self.ref, self._acceptor, self._jobs, job, self._await_applied)
        self.ref.store.checkpoint()  # the id would stay in the WAL

    def _await_applied(self, end: float) -> None:
        """Return once no chunk before this number is cut and not applied."""
        while (cut := self.to_apply()) and cut[0] < end:
            if self.ref.store.has_loop:  # it counts the chunk that kills a process
                time.sleep(POLL_SECONDS)
            else:
                self._applier.apply_all()

    def resume(self) -> bool:
        """Finish what is recorded: a worker to forget, labels to withdraw; says if one was."""
        return self._jobs.resume()

    # ── reading; see `Queries` ────────────────────────────────────────────────────────────

    def answers(self, after: Hashable = None, limit: int | None = None) -> list[Answer]:
        """The answers by item, in the order of their ids as text."""
        return self._queries.answers(after, limit)

    def item(self, task: Hashable) -> Answer | Undecided | None:
        """One item: its answer, or what it waits for; None of an unknown item."""
        return self._queries.item(task)

    def pending(self, threshold: float = 0.95, limit: int = 100) -> list[tuple[Answer, bool]]:
        """Answers with less confidence than this, the least first, and whether each is open."""
        return self._queries.pending(threshold, limit)

    def chunks(self, after: int = 0, limit: int | None = None) -> list[Mapping[str, Any]]:
        """Chunks that were cut after this one, and what became of each; at most `limit`."""
        return self._queries.chunks(after, limit)

    def last_chunks(self, limit: int = 10) -> list[Mapping[str, Any]]:
        """The chunks that were cut last, the newest first."""
        return self._queries.last_chunks(limit)

    def quarantined(self) -> list[int]:
        """The chunks that could not be learned from."""
        return self._queries.quarantined()

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """What happened after the event of this number: id, at, kind, body."""
        return self._queries.events(after, limit)

    def last_event(self) -> int:
        """The number of the last event; 0 where there was none."""
        return self._queries.last_event()

    def classes(self) -> list[Hashable]:
        """The classes known so far, in the order of every probability."""
        return self._queries.classes()

    def model_version(self) -> int:
        """How many chunks were learned from."""
        return self._queries.model_version()

    def count(self) -> dict[str, int]:
        """How many labels and items wait, were late, were answered; the model's version."""
        return self._queries.count()

    def recent_agreement(self, workers: Sequence[Hashable]) -> dict[Hashable, Recent]:
        """How often each of these workers agreed with the answers recently."""
        return self._queries.recent_agreement(workers)

    def gold_error(self) -> GoldError | None:
        """How often answers were wrong, by truths that came after them; None where none did."""
        return self._queries.gold_error()

    def expected_error(self, level: float = 0.95) -> "ExpectedError | None":
        """The expected share of wrong answers, corrected on gold; None if nothing was answered."""
        from labelquorum.store.certificate import stream_expected_error

        return stream_expected_error(self.ref, level, self._gold_sampling)

    def certificate(self, error: float = 0.02, confidence: float = 0.95) -> "Certificate":
        """Which answers may stand, by gold drawn at random, and what a person must still see."""
        from labelquorum.store.certificate import stream_certificate

        return stream_certificate(self.ref, error, confidence, self._gold_sampling)

    @property
    def _gold_sampling(self) -> "GoldSampling":
        """How its gold is drawn."""
        return self.settings.get("gold_sampling") or "random"

    def snapshot(self) -> "Snapshot":
        """The whole model, every worker, as `BiLA.save` would write it."""
        return self._queries.snapshot()

    def estimator(self) -> "Estimator":
        """The whole model as an estimator of the library, detached from the store."""
        return self._queries.estimator()

    def model_file(self) -> bytes:
        """The whole model as the file `labelquorum.load` reads."""
        return self._queries.model_file()

    def state_hash(self) -> str:
        """SHA-256 of the model and all answers: equal after the same cuts, whatever happened."""
        return self._queries.state_hash()

    def workers(
        self,
        after: int = -1,
        limit: int = 100,
        places: Sequence[int] | None = None,
        matrices: bool = True,
    ) -> list[dict[str, Any]]:
        """Workers in order of appearance, with skill, its interval, and their counts."""
        return self._queries.workers(after, limit, places, matrices)

    def worker(self, worker: Hashable) -> dict[str, Any]:
        """One worker: skill, its interval, the confusion matrix, and their counts."""
        return self._queries.worker(worker)

    def profile(self, worker: Hashable) -> dict[str, Any]:
        """One worker beside the crowd and over time: as `worker`, with track and changes."""
        return self._queries.profile(worker)

    def worker_table(self) -> tuple[int, list[dict[str, Any]], int]:
        """The workers with most labels, by place: labels, agreement, skill, and flags."""
        return self._queries.worker_table()

    def agreement(self, limit: int = AGREEMENT_WORKERS) -> dict[str, Any]:
        """Cohen's kappa of every two of the workers with most labels on the items answered last."""
        return self._queries.agreement(limit)

    def jury(self, limit: int = JURY_WORKERS) -> dict[str, Any]:
        """For how many independent judges the workers count on the items answered last."""
        return self._queries.jury(limit)

    def suggestions(self, limit: int = 100) -> tuple[list[dict[str, Any]], int]:
        """Open items by what one more label would likely do, the largest gain first."""
        return self._queries.suggestions(limit)

    def gains(self, tasks: Sequence[Hashable], top: int | None = None) -> list[dict[str, Any]]:
        """What one more label of each of these open items would likely do."""
        return self._queries.gains(tasks, top)

    def explain(self, task: Hashable) -> dict[str, Any] | None:
        """Why an open item has its answer; None of an item whose labels are no longer held."""
        return self._queries.explain(task)

    def reasons(self, task: Hashable) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Why an open item has its answer, and what one more label would do, if known."""
        return self._queries.reasons(task)
