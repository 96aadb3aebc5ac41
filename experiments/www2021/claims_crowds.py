"""What sections 5.2.2 to 5.2.4 say about crowds, optimisers and offline errors."""

from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import Any

from case import (
    CROWDS,
    OFFLINE,
    SIX,
    SYNTHETIC,
    Case,
    Check,
    Part,
    Parts,
    best_of,
    name,
)
from cells import Measured, Summary
from verdicts import WORSE, judge, title

AXES: dict[str, tuple[Any, ...]] = {
    "workers": (6, 8, 10),
    "missing": (0.1, 0.2, 0.3),
    "noise": (0.4, 0.6, 0.8),
}
PLAIN = {"workers": 10, "missing": 0.1, "noise": 0.6}
AWAY = [{}, *({axis: v} for axis, values in AXES.items() for v in values if v != PLAIN[axis])]
"""The seven crowds of Figure 4."""
OPTIMISERS = {"bounded_rmsprop": "the paper's", "rmsprop": "RMSProp", "adam": "Adam"}
STARTS = {"log_frequencies": "the preset's start", "frequencies": "the near-flat start"}
EARLY = 20  # epochs that count as the first ones
ALIKE = 0.5  # points
ALMOST_DOUBLE = (1.7, 2.1)
HALF = 0.55


# ── section 5.2.2: Figure 4 ──────────────────────────────────────────────────────────────────


def trends(case: Case, _: Any) -> Parts:
    for protocol, fields in CROWDS.items():
        for data in SYNTHETIC:
            for method in case.subjects:
                broken, seen = [], 0
                for axis, values in AXES.items():
                    runs = [case.online(data, method, 0, **{axis: v}, **fields) for v in values]
                    found = [s.mean for s in runs if s]
                    seen += len(found) > 1
                    ordered = found if axis != "workers" else found[::-1]
                    if any(a >= b for a, b in pairwise(ordered)):
                        broken.append(f"{axis} {' → '.join(f'{e:.1f}' for e in found)}")
                if seen:
                    words = f"not along {'; '.join(broken)}" if broken else "along all axes"
                    yield Part(protocol, not broken, f"{title(data)}, {name(method)}: {words}")


def ranking(case: Case, _: Any) -> Parts:
    for protocol, fields in CROWDS.items():
        for data in SYNTHETIC:
            held = []
            for away in AWAY:
                methods = (case.preset or "", "oem", "mv")
                runs = [case.online(data, k, 0, **away, **fields) for k in methods]
                errors = [s.mean for s in runs if s]
                if len(errors) == len(methods):
                    held.append(errors[0] < errors[1] < errors[2])
            if held:
                figures = f"{title(data)}: in {sum(held)} of {len(held)} crowds"
                yield Part(protocol, all(held), figures)


def six_workers(case: Case, printed: float) -> Parts:
    for protocol, fields in CROWDS.items():
        for data in SYNTHETIC:
            vote = case.online(data, "mv", 0, **fields)
            ours = case.online(data, case.preset or "", 0, workers=6, **fields)
            if ours and vote:
                figures = f"{title(data)}: {ours} with 6 workers, MV {vote} with 10"
                yield Part(protocol, judge(printed, ours).word != WORSE, figures)


def sparsity(case: Case, most: float) -> Parts:
    low, high = ALMOST_DOUBLE
    for protocol, fields in CROWDS.items():
        for data in SYNTHETIC:
            method = case.preset or "oem"
            few = case.online(data, method, 0, **fields)
            many = case.online(data, method, 0, missing=0.3, **fields)
            if few and many:
                ratio = many.mean / few.mean
                right = low <= ratio <= high if case.preset else ratio < 1 + most / 100
                figures = f"{title(data)}, {name(method)}: "
                figures += f"{few.mean:.1f} → {many.mean:.1f}, times {ratio:.2f}"
                yield Part(protocol, right, figures)


def noise_80(case: Case, printed: float) -> Parts:
    for protocol, fields in CROWDS.items():
        for data in SYNTHETIC:
            for method in case.subjects:
                found = case.online(data, method, 0, noise=0.8, **fields)
                if found:
                    accuracy = 100 - found.mean
                    figures = f"{title(data)}, {name(method)}: accuracy {accuracy:.1f} %"
                    yield Part(protocol, accuracy <= printed, figures)


def half(case: Case, _: Any) -> Parts:
    for protocol, fields in CROWDS.items():
        for data in SYNTHETIC:
            for noise in (0.4, 0.6):
                methods = (case.preset or "", "oem", "mv")
                runs = [case.online(data, k, 0, noise=noise, **fields) for k in methods]
                errors = [s.mean for s in runs if s]
                if len(errors) == len(methods):
                    of_em, of_vote = errors[0] / errors[1], errors[0] / errors[2]
                    figures = (
                        f"{title(data)}, noise {noise}: {of_em:.2f} of EM, {of_vote:.2f} of MV"
                    )
                    yield Part(protocol, max(of_em, of_vote) <= HALF, figures)


# ── section 5.2.3: Figure 6 ──────────────────────────────────────────────────────────────────


def epoch_curves(m: Measured) -> dict[tuple[str, str], dict[str, Summary]]:
    """The runs of Figure 6 by data and start, then by optimiser."""
    found: dict[tuple[str, str], dict[str, Summary]] = {}
    for cell in m.cells():
        given = dict(cell.settings)
        runs = m.of(cell)
        if given.get("record_epochs") and runs:
            place = found.setdefault((cell.data, given["init_from"]), {})
            place[given["optimizer"]] = runs
    return dict(sorted(found.items(), reverse=True))


def _epochs(case: Case) -> list[tuple[str, dict[str, list[Any]], bool]]:
    """Protocol, the error after each epoch by optimiser, and whether these are the paper's data."""
    return [
        (
            f"{title(data)}, {STARTS[start]}",
            {optimiser: runs.curve("epoch_errors") for optimiser, runs in by.items()},
            data == "age",
        )
        for (data, start), by in epoch_curves(case.measured).items()
    ]


def faster_than_rmsprop(case: Case, _: Any) -> Parts:
    for protocol, found, own in _epochs(case):
        if {"bounded_rmsprop", "rmsprop"} <= set(found):
            ours, other = (fmean(found[k][:EARLY]) for k in ("bounded_rmsprop", "rmsprop"))
            first, *_, last = found["bounded_rmsprop"]
            n = min(EARLY, len(found["rmsprop"]))
            figures = f"error {first:.2f} after the first epoch, {last:.2f} after the last; "
            figures += f"mean of the first {n} epochs {ours:.2f} against {other:.2f} for RMSProp"
            yield Part(protocol, last < first and ours < other, figures, own)


def adam_120(case: Case, epoch: int) -> Parts:
    for protocol, found, own in _epochs(case):
        if {"bounded_rmsprop", "adam"} <= set(found) and len(found["adam"]) > epoch:
            ours, adam = found["bounded_rmsprop"], found["adam"]
            first = fmean(ours[:EARLY]) - fmean(adam[:EARLY])
            last = fmean(a - b for a, b in zip(ours[epoch - 1 :], adam[epoch - 1 :], strict=True))
            figures = f"the paper's less Adam's error {first:+.2f} points over the first "
            figures += f"{EARLY} epochs, {last:+.2f} from {epoch} on"
            yield Part(protocol, first > 0 and abs(last) <= ALIKE, figures, own)


# ── section 5.2.4: Table 3 ───────────────────────────────────────────────────────────────────


def _six(case: Case, data: str) -> dict[str, Summary]:
    found = {method: case.find(data, method) for method in SIX}
    return {method: summary for method, summary in found.items() if summary}


def offline_lowest(case: Case, _: Any) -> Parts:
    for data in ("adult", "rte", "heart", "age"):
        others, ours = _six(case, data), case.find(data, case.preset or "")
        if ours and others:
            best = best_of(others)
            figures = f"{title(data)}: {ours.mean:.2f}, best of the others {name(best)} "
            figures += f"{others[best].mean:.2f}"
            yield Part(OFFLINE, ours.mean < others[best].mean, figures)


def offline_second(second: dict[str, str]) -> Check:
    """Whether a method is the best of the six baselines, by data set."""

    def check(case: Case, _: Any) -> Parts:
        for data, method in second.items():
            others = _six(case, data)
            if method in others:
                best = best_of(others)
                noise = 2 * sqrt(others[best].sd ** 2 + others[method].sd ** 2)
                less = others[method].mean - others[best].mean
                figures = f"{title(data)}: {name(method)} {others[method]}, best of the six "
                yield Part(OFFLINE, less <= noise, f"{figures}{name(best)} {others[best]}")

    return check
