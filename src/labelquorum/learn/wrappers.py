"""Ways to run any aggregator on a stream."""

from typing import Any

from labelquorum.ingest.chunks import Chunk
from labelquorum.learn.aggregator import Aggregator

__all__ = ["windowed"]


def windowed(aggregator: Aggregator) -> Aggregator:
    """Throw the state away at each chunk, so that the model sees its window alone.

    This is how the BiLA paper runs EM and MMCE on a stream: its oEM and oMMCE.
    """

    def update(state: Any, chunk: Chunk) -> tuple[Any, Any]:
        if not chunk.n_labels:
            return state, aggregator.update(state, chunk)[1]
        return aggregator.update(aggregator.init(chunk, state.seed), chunk)

    name = f"windowed:{aggregator.name}"
    return aggregator._replace(name=name, update=update, counts=None)
