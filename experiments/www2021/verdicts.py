"""The printed figures, the rule of verdicts on them, and the names of the methods compared."""

import tomllib
from math import sqrt
from typing import NamedTuple

from cells import Summary
from plan import HERE

PAPER = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
MATCHES, BETTER, WORSE = "matches within noise", "better", "worse"
NO_DATA, NOT_MEASURED = "data not available", "not measured"
RULE = (
    "A cell matches within noise if it differs from the printed figure by at most 2·√(s² + b²): "
    "s is our standard deviation over seeds, and b is the binomial standard deviation of the "
    "printed error over as many items as were scored, because the paper gives no deviation of its "
    "own. Otherwise the cell is better (fewer errors than printed) or worse. b is generous where "
    "the items are the paper's own, so the difference is given as well."
)
PRESETS = ("authors", "www2021", "default")
ABILITY = ("authors_wa", "www2021_wa", "default_wa")
PRESET_TITLES = {
    "authors": 'BiLA("authors"), the released code',
    "www2021": 'BiLA("www2021"), our reading of Algorithm 1',
    "default": "BiLA(), our default",
}
PAPERS, OURS = "the paper's settings", "our settings"
BASELINES: dict[str, dict[str, str]] = {
    PAPERS: {name: f"{name}_paper" for name in ("oem", "ommce", "laa", "em", "mmce")},
    OURS: {},
}
"""The method that stands for a baseline of the paper; by default the one of the same name."""
SETTINGS = (
    "The paper does not say how its baselines were set. “The paper's settings” are those that "
    "bring a baseline near its printed figures: one label added to every count of EM, α = 2.5 for "
    "MMCE, one epoch of training for LAA. “Our settings” are the defaults of this library: 0.00001 "
    "added to every count of EM, α = C²/4 for MMCE as in its authors' released code, and LAA "
    "trained until its loss settles."
)


class Verdict(NamedTuple):
    word: str
    difference: float  # ours less printed, in points
    noise: float  # the largest difference that still matches


def judge(printed: float, ours: Summary) -> Verdict:
    """Compare a mean over seeds with a printed figure; `RULE` in words."""
    share = printed / 100
    binomial = 100 * sqrt(share * (1 - share) / ours.scored)
    noise = 2 * sqrt(ours.sd**2 + binomial**2)
    difference = ours.mean - printed
    if abs(difference) <= noise:
        return Verdict(MATCHES, difference, noise)
    return Verdict(BETTER if difference < 0 else WORSE, difference, noise)


def title(data: str) -> str:
    return str(PAPER["table1"][data]["title"])
