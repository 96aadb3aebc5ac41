"""BiLA: an encoder q and a generative model p, trained chunk by chunk on an exact loss.

Hong, Ghiassi, Zhou, Birke, Chen: Online Label Aggregation: A Variational Bayesian Approach,
WWW 2021. `docs/paper.md` maps every equation to a function and numbers every departure.
"""

from typing import Unpack

from labelquorum.ingest.labels import LabelSpace
from labelquorum.learn.aggregator import Aggregator
from labelquorum.learn.bila.counts import counting
from labelquorum.learn.bila.gradient import gradient_aggregator
from labelquorum.learn.bila.hierarchical import Recipe
from labelquorum.learn.bila.presets import PRESETS
from labelquorum.learn.bila.settings import (
    SETTINGS,
    Settings,
    check,
    complete,
    counted_models,
    has_effect,
    takes_settings,
)

__all__ = ["PRESETS", "bila"]


@takes_settings
def bila(space: LabelSpace | None = None, **settings: Unpack[Settings]) -> Aggregator:
    """Build BiLA.

    Parameters
    ----------
    space
        The rules for labels; its classes are checked against the generative model.
    settings
        Those of `Settings`.

    Examples
    --------
    >>> from labelquorum.ingest.chunks import make_chunk
    >>> labels = make_chunk([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2], [1, 1, 0, 0, 0, 1])
    >>> method = bila()
    >>> state, info = method.update(method.init(labels, 0), labels)
    >>> method.aggregate(state, labels).aggregated.tolist()
    [1, 0]
    """
    chosen = complete(settings, {name: setting.default for name, setting in SETTINGS.items()})
    check(chosen)
    generative = chosen["generative"]
    if models := counted_models(generative):
        constants = {name: chosen[name] for name in Recipe._fields if name in chosen}
        return counting(Recipe(**constants, worker_models=models))
    used = {name: value for name, value in chosen.items() if has_effect(name, generative)}
    return gradient_aggregator(space, **used)
