"""What the paper's text says, each statement held against what was measured.

A statement holds if all its parts do, and in part if some do; `paper.toml` has the statements, by
name. Here are the checks of sections 5.2.2 to 5.2.4, in `claims_online.py` the others.
"""

from collections.abc import Callable
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import Any

import claims_online as streams
from cells import Measured, Summary
from claims_online import CROWDS, Parts, name
from verdicts import MATCHES, PAPER, PRESETS, judge

HOLDS, IN_PART, FAILS, NOT_MEASURED = "holds", "holds in part", "does not hold", "not measured"
AXES: dict[str, tuple[Any, ...]] = {
    "workers": (6, 8, 10),
    "missing": (0.1, 0.2, 0.3),
    "noise": (0.4, 0.6, 0.8),
}
PLAIN = {"workers": 10, "missing": 0.1, "noise": 0.6}
OPTIMISERS = {"bounded_rmsprop": "the paper's", "rmsprop": "RMSProp", "adam": "Adam"}
STARTS = {"log_frequencies": "the preset's start", "frequencies": "the near-flat start"}
EARLY = 20  # epochs that count as the first ones
ALIKE = 0.5  # points
ALMOST_DOUBLE = (1.7, 2.1)
HALF = 0.55
ABOUT = {  # data a statement is about, besides what was measured
    "vote_second": ("age",),
    "faster_than_rmsprop": ("age",),
    "adam_120": ("age",),
    "offline_lowest": ("heart", "age"),
}


# ── section 5.2.2: Figure 4 ──────────────────────────────────────────────────────────────────


def crowd(m: Measured, data: str, method: str, **fields: Any) -> Summary | None:
    """A cell of Figure 4: small chunks, one thing away from the usual crowd."""
    if method == "oracle":
        return m(data, method, **fields)
    printed = PAPER["table2"][data]
    return m(data, method, printed["chunks"][0], initial=printed["initial"], **fields)


def settings() -> list[dict[str, Any]]:
    """The seven crowds of Figure 4."""
    away = [{axis: v} for axis, values in AXES.items() for v in values if v != PLAIN[axis]]
    return [{}, *away]


def trends(m: Measured, _: Any) -> Parts:
    for data, title in CROWDS.items():
        for method in ("mv", "oem", *PRESETS):
            broken, seen = [], 0
            for axis, values in AXES.items():
                found = [s.mean for v in values if (s := crowd(m, data, method, **{axis: v}))]
                seen += len(found) > 1
                ordered = found if axis != "workers" else found[::-1]
                if any(a >= b for a, b in pairwise(ordered)):
                    broken.append(f"{axis} {' → '.join(f'{e:.1f}' for e in found)}")
            if seen:
                told = f"not along {'; '.join(broken)}" if broken else "so along all axes"
                yield not broken, f"{title}, {name(method)}: {told}"


def ranking(m: Measured, _: Any) -> Parts:
    for data, title in CROWDS.items():
        for preset in PRESETS:
            held = []
            for fields in settings():
                found = [crowd(m, data, k, **fields) for k in (preset, "oem", "mv")]
                if all(found):
                    ours, em, vote = (s.mean for s in found if s)
                    held.append(ours < em < vote)
            if held:
                yield all(held), f"{title}, {preset}: in {sum(held)} of {len(held)} crowds"


def six_workers(m: Measured, printed: float) -> Parts:
    for data, title in CROWDS.items():
        vote = crowd(m, data, "mv")
        for preset in PRESETS:
            ours = crowd(m, data, preset, workers=6)
            if ours and vote:
                told = f"{title}, {preset}: {ours} with 6 workers, MV {vote} with 10"
                yield judge(printed, ours).word == MATCHES, told


def sparsity(m: Measured, most: float) -> Parts:
    low, high = ALMOST_DOUBLE
    for data, title in CROWDS.items():
        for method in ("oem", *PRESETS):
            few, many = crowd(m, data, method), crowd(m, data, method, missing=0.3)
            if few and many:
                ratio = many.mean / few.mean
                right = ratio < 1 + most / 100 if method == "oem" else low <= ratio <= high
                figures = f"{few.mean:.1f} → {many.mean:.1f}, times {ratio:.2f}"
                yield right, f"{title}, {name(method)}: {figures}"


def noise_80(m: Measured, printed: float) -> Parts:
    for data, title in CROWDS.items():
        for method in ("mv", "oem", *PRESETS):
            found = crowd(m, data, method, noise=0.8)
            if found:
                told = f"{title}, {name(method)}: accuracy {100 - found.mean:.1f} %"
                yield 100 - found.mean <= printed, told


def half(m: Measured, _: Any) -> Parts:
    for data, title in CROWDS.items():
        for noise in (0.4, 0.6):
            for preset in PRESETS:
                found = [crowd(m, data, k, noise=noise) for k in (preset, "oem", "mv")]
                if all(found):
                    ours, em, vote = (s.mean for s in found if s)
                    figures = f"{ours / em:.2f} of EM, {ours / vote:.2f} of MV"
                    right = max(ours / em, ours / vote) <= HALF
                    yield right, f"{title}, noise {noise}, {preset}: {figures}"


# ── section 5.2.3: Figure 6 ──────────────────────────────────────────────────────────────────


def epoch_curves(m: Measured) -> dict[tuple[str, str], dict[str, Summary]]:
    """The runs of Figure 6 by data and start, then by optimiser."""
    found: dict[tuple[str, str], dict[str, Summary]] = {}
    for cell in m.cells():
        given = dict(cell.settings)
        if given.get("record_epochs"):
            runs = m.of(cell)
            if runs:
                place = found.setdefault((cell.data, given["init_from"]), {})
                place[given["optimizer"]] = runs
    return dict(sorted(found.items(), reverse=True))


def _epochs(m: Measured) -> list[tuple[str, dict[str, list[Any]]]]:
    return [
        (
            f"{PAPER['table1'][data]['title']}, {STARTS[start]}",
            {optimiser: runs.curve("epoch_errors") for optimiser, runs in by.items()},
        )
        for (data, start), by in epoch_curves(m).items()
    ]


def faster_than_rmsprop(m: Measured, _: Any) -> Parts:
    for title, found in _epochs(m):
        if {"bounded_rmsprop", "rmsprop"} <= set(found):
            ours, other = (fmean(found[k][:EARLY]) for k in ("bounded_rmsprop", "rmsprop"))
            first, *_, last = found["bounded_rmsprop"]
            n = min(EARLY, len(found["rmsprop"]))
            yield (
                last < first and ours < other,
                f"{title}: error {first:.2f} after the first epoch, {last:.2f} after the last; "
                f"mean of the first {n} epochs {ours:.2f} against {other:.2f} for RMSProp",
            )


def adam_120(m: Measured, epoch: int) -> Parts:
    for title, found in _epochs(m):
        if {"bounded_rmsprop", "adam"} <= set(found) and len(found["adam"]) > epoch:
            ours, adam = found["bounded_rmsprop"], found["adam"]
            first = fmean(ours[:EARLY]) - fmean(adam[:EARLY])
            last = fmean(a - b for a, b in zip(ours[epoch - 1 :], adam[epoch - 1 :], strict=True))
            yield (
                first > 0 and abs(last) <= ALIKE,
                f"{title}: the paper's less Adam's error {first:+.2f} points over the first "
                f"{EARLY} epochs, {last:+.2f} from {epoch} on",
            )


# ── section 5.2.4: Table 3 ───────────────────────────────────────────────────────────────────


def offline_lowest(m: Measured, _: Any) -> Parts:
    for data in PAPER["table3"]:
        others = {
            k: s for k in ("mv", "em", "bcc", "me", "mmce", "laa") if (s := m(data, k)) is not None
        }
        for preset in PRESETS:
            ours = m(data, preset)
            if ours and others:
                best = min(others, key=lambda k: others[k].mean)
                told = f"{preset} {ours.mean:.2f}, best of the others {best.upper()} "
                title = PAPER["table1"][data]["title"]
                yield ours.mean < others[best].mean, f"{title}: {told}{others[best].mean:.2f}"


def offline_second(m: Measured, _: Any) -> Parts:
    for data in ("adult", "rte"):
        others = {
            k: s for k in ("mv", "em", "bcc", "me", "mmce", "laa") if (s := m(data, k)) is not None
        }
        if "bcc" in others:
            best = min(others, key=lambda k: others[k].mean)
            noise = 2 * sqrt(others[best].sd ** 2 + others["bcc"].sd ** 2)
            less = others["bcc"].mean - others[best].mean
            told = f"BCC {others['bcc']}, best of the six {best.upper()} {others[best]}"
            yield less <= noise, f"{PAPER['table1'][data]['title']}: {told}"


CHECKS: dict[str, Callable[[Measured, Any], Parts]] = {
    "em_gap_50": streams.gap("oem", "em", 50),
    "mmce_gap_50": streams.gap("ommce", "mmce", 50),
    "em_gap_25": streams.gap("oem", "em", 25),
    "mmce_gap_25": streams.gap("ommce", "mmce", 25),
    "em_equal_400": streams.em_equal,
    "mmce_never_equal": streams.mmce_never_equal,
    "laa_band": streams.laa_band,
    "laa_best": streams.laa_best,
    "ten_points": streams.ten_points,
    "vote_second": streams.vote_second,
    "mmce_second": streams.mmce_second,
    "mmce_iterations": streams.mmce_iterations,
    "overhead": streams.overhead,
    "rise_then_drop": streams.rise_then_drop,
    "lowest_throughout": streams.lowest_throughout,
    "chunk_size": streams.chunk_size,
    "trends": trends,
    "ranking": ranking,
    "six_workers": six_workers,
    "sparsity": sparsity,
    "noise_80": noise_80,
    "half": half,
    "faster_than_rmsprop": faster_than_rmsprop,
    "adam_120": adam_120,
    "offline_lowest": offline_lowest,
    "offline_second": offline_second,
}
"""By the names in `paper.toml`."""


CRITERIA = {
    "em_gap_50": "the gap differs from the printed one by no more than noise: our deviation over "
    "seeds, and the least one a paired difference of that size can have over so many items",
    "em_equal_400": "the same to within noise, or to one item",
    "laa_best": "LAA's best is what is printed to within noise, and above both",
    "ten_points": "EM is the best of the other methods, and BiLA is so far below it",
    "vote_second": "MV is the best of the other methods, and so far above BiLA",
    "mmce_second": "all three presets are below every other method, and MMCE is the first of these",
    "overhead": "MV costs least, EM less than LAA and each preset, and these differ by less than "
    f"{streams.SAME_ORDER} times",
    "rise_then_drop": "the error is at some point above that of the initial set, and at the end "
    "below its largest",
    "lowest_throughout": "no other method is lower at any chunk",
    "chunk_size": "from 25 to 400, each preset's largest less smallest error is below that of EM "
    "and of MMCE",
    "six_workers": "the error with 6 workers is what is printed, to within noise",
    "sparsity": f"BiLA's error grows {ALMOST_DOUBLE[0]} to {ALMOST_DOUBLE[1]} times, EM's less "
    "than 1.3 times",
    "half": f"at most {HALF} of either error",
    "faster_than_rmsprop": "its error falls from the first epoch to the last, and over the first "
    f"{EARLY} epochs it is lower on average",
    "adam_120": f"Adam's mean error of the first {EARLY} epochs is lower, and from the epoch named "
    f"on the two differ by at most {ALIKE} points on average",
    "offline_second": "no other of the six is lower by more than noise",
}
"""How a statement is read where its words leave that open. The other gaps are read as the first."""
CRITERIA |= dict.fromkeys(("mmce_gap_50", "em_gap_25", "mmce_gap_25"), CRITERIA["em_gap_50"])


def check_all(m: Measured, absent: set[str]) -> list[dict[str, Any]]:
    """Every statement of the paper with its verdict and the figures that say it."""
    found = []
    for said in PAPER["prose"]:
        parts = list(CHECKS[said["name"]](m, said.get("value")))
        # The paper's own tables say nothing about ours.
        measured = [part for part in parts if "own Table" not in part[1]]
        right = sum(true for true, _ in parts)
        verdict = HOLDS if right == len(parts) else IN_PART if right else FAILS
        told = [{"holds": true, "figures": figures} for true, figures in parts]
        untested = [d for d in ABOUT.get(said["name"], ()) if d in absent]
        found.append(
            {
                **said,
                "verdict": verdict if measured else NOT_MEASURED,
                "parts": told,
                "criterion": CRITERIA.get(said["name"], ""),
                "untested": [PAPER["table1"][data]["title"] for data in untested],
            }
        )
    return found
