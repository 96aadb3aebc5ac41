"""What the paper's text says, every statement compared with what was measured.

`paper.toml` has the statements, by name, and what each is about. A statement holds for a preset if
all its parts do, and in part if some do.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import claims_crowds as crowds
import claims_online as online
from case import Case, Check, Part
from cells import Measured
from verdicts import NOT_MEASURED, OURS, PAPER, PAPERS, PRESETS, title

HOLDS, IN_PART, FAILS = "holds", "holds in part", "does not hold"
NOT_TESTABLE = "cannot be tested"
WORDS = (HOLDS, IN_PART, FAILS, NOT_TESTABLE, NOT_MEASURED)
BASELINES = "baselines"
SUBJECTS: dict[str, tuple[str, ...]] = {
    "bila": PRESETS,
    "baselines": (BASELINES,),
    "both": (*PRESETS, BASELINES),
    "optimiser": ("www2021",),  # the preset that has the paper's
}
"""For whom a statement is judged, by what it is about."""

CHECKS: dict[str, Check] = {
    "em_gap_50": online.gap("oem", "em", 50),
    "mmce_gap_50": online.gap("ommce", "mmce", 50),
    "em_gap_25": online.gap("oem", "em", 25),
    "mmce_gap_25": online.gap("ommce", "mmce", 25),
    "em_equal_400": online.em_equal,
    "mmce_never_equal": online.mmce_never_equal,
    "laa_band": online.laa_band,
    "laa_best": online.laa_best,
    "ten_points": online.ten_points,
    "vote_second": online.vote_second,
    "mmce_second": online.mmce_second,
    "mmce_iterations": online.mmce_iterations,
    "overhead": online.overhead,
    "rise_then_drop": online.rise_then_drop,
    "lowest_throughout": online.lowest_throughout,
    "chunk_size": online.chunk_size,
    "trends": crowds.trends,
    "ranking": crowds.ranking,
    "six_workers": crowds.six_workers,
    "sparsity": crowds.sparsity,
    "noise_80": crowds.noise_80,
    "half": crowds.half,
    "faster_than_rmsprop": crowds.faster_than_rmsprop,
    "adam_120": crowds.adam_120,
    "offline_lowest": crowds.offline_lowest,
    "offline_second": crowds.offline_second({"adult": "bcc", "rte": "bcc"}),
    "offline_second_others": crowds.offline_second({"heart": "laa", "age": "me"}),
}
"""By the names in `paper.toml`."""

_GAP = (
    "the gap differs from the printed one by no more than noise: our deviation over seeds, and the "
    "least one a paired difference of that size can have over that number of items"
)
CRITERIA = {
    **dict.fromkeys(("em_gap_50", "mmce_gap_50", "em_gap_25", "mmce_gap_25"), _GAP),
    "em_equal_400": "the same to within noise, or to one item",
    "laa_best": "LAA's best is what is printed to within noise, and above both",
    "ten_points": "BiLA is as far below EM as in the paper's own Table 2, to within two standard "
    "deviations over seeds, and EM is the best of the other methods",
    "vote_second": "BiLA is at least that far below MV, and MV is the best of the other methods",
    "mmce_second": "BiLA is below every other method, and MMCE is the best of these",
    "overhead": "MV costs least, EM less than LAA and BiLA, and these two differ by less than "
    f"{online.SAME_ORDER} times",
    "rise_then_drop": "the error is at some point above that of the initial set, and at the end "
    "below its largest",
    "lowest_throughout": "no other method is lower at any chunk",
    "chunk_size": "over chunks of 25 to 400 after the initial set of 500 items, BiLA's largest "
    "less smallest error is below that of EM and of MMCE. From 300 on the rest of RTE is one "
    "chunk. The run without an initial set, as in Fig. 2(b), stands beside it and does not count",
    "trends": "along each axis the error of every step is above that of the step before",
    "ranking": "in all seven crowds",
    "six_workers": "the error with 6 workers is at most what is printed, to within noise",
    "sparsity": f"BiLA's error grows {crowds.ALMOST_DOUBLE[0]} to {crowds.ALMOST_DOUBLE[1]} times, "
    "EM's less than 1.3 times",
    "half": f"at most {crowds.HALF} of either error",
    "faster_than_rmsprop": "its error falls from the first epoch to the last, and over the first "
    f"{crowds.EARLY} epochs it is lower on average",
    "adam_120": f"Adam's mean error of the first {crowds.EARLY} epochs is lower, and from the "
    f"epoch named on the two differ by at most {crowds.ALIKE} points on average",
    "offline_second": "no other of the six is lower by more than noise",
}
"""How a statement is read where its words leave that open."""


def check_all(m: Measured, absent: set[str]) -> list[dict[str, Any]]:
    """Every statement of the paper with its verdicts and the figures behind them."""
    found = []
    for said in PAPER["prose"]:
        untested = [data for data in said.get("data", []) if data in absent]
        testable = not untested or len(untested) < len(said["data"])
        judged: list[dict[str, Any]] = []
        for subject in SUBJECTS[said["about"]]:
            for baselines in (PAPERS, OURS):
                preset = None if subject == BASELINES else subject
                case = Case(m, preset, baselines)
                parts = list(CHECKS[said["name"]](case, said.get("value")))
                one = {"subject": subject, "baselines": baselines}
                one |= {"verdict": verdict(parts, testable), "protocols": by_protocol(parts)}
                # Most statements about a preset alone are the same beside other baselines.
                if baselines == PAPERS or one["protocols"] != judged[-1]["protocols"]:
                    judged.append(one)
        read = {"criterion": CRITERIA.get(said["name"], "")}
        found.append({**said, **read, "untested": list(map(title, untested)), "judged": judged})
    return found


def verdict(parts: Iterable[Part], testable: bool = True) -> str:
    """All parts that count, some of them, or none."""
    right = [part.holds for part in parts if part.counts]
    if not testable:
        return NOT_TESTABLE
    if not right:
        return NOT_MEASURED
    return HOLDS if all(right) else IN_PART if any(right) else FAILS


def by_protocol(parts: list[Part]) -> list[dict[str, Any]]:
    """The verdict within each protocol, and its parts."""
    grouped: dict[str, list[Part]] = {}
    for part in parts:
        grouped.setdefault(part.protocol, []).append(part)
    return [
        {
            "protocol": protocol,
            "counts": own[0].counts,
            "verdict": verdict([part._replace(counts=True) for part in own]),
            "parts": [{"holds": part.holds, "figures": part.figures} for part in own],
        }
        for protocol, own in grouped.items()
    ]


def verdict_of(row: dict[str, Any], subject: str, baselines: str) -> dict[str, Any] | None:
    """How a statement was judged for a subject; beside our baselines as beside the paper's."""
    own = [one for one in row["judged"] if one["subject"] == subject]
    other = [one for one in own if one["baselines"] == baselines]
    return (other or own or [None])[0]


def tally(rows: list[dict[str, Any]], subject: str, baselines: str) -> dict[str, int]:
    """How many statements got each verdict."""
    found = Counter(one["verdict"] for r in rows if (one := verdict_of(r, subject, baselines)))
    return {word: found[word] for word in WORDS}


def tally_protocol(rows: list[dict[str, Any]], subject: str, protocol: str) -> dict[str, int]:
    """The same within one protocol, beside baselines at the paper's settings."""
    found = Counter(
        each["verdict"]
        for row in rows
        if (one := verdict_of(row, subject, PAPERS))
        for each in one["protocols"]
        if each["protocol"] == protocol and each["counts"]
    )
    return {word: found[word] for word in (HOLDS, IN_PART, FAILS)}
