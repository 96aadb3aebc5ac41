"""What sections 2 and 5.2.1 of the paper say about streams, compared with what was measured."""

from itertools import pairwise
from math import sqrt
from typing import Any

from case import (
    CROWDS,
    ORDERS,
    REAL,
    STREAMS,
    SYNTHETIC,
    Case,
    Check,
    Part,
    Parts,
    best_of,
    name,
    places,
)
from cells import Summary
from verdicts import MATCHES, PAPER, judge, title

CHUNKS = (25, 50, 100, 200, 400)  # 800 is all of RTE at once
SAME_ORDER = 10


# ── section 2: EM, MMCE and LAA online and offline, without an initial set ───────────────────


def gap(online: str, offline: str, chunk: int) -> Check:
    """The distance from offline after the last chunk, against the one printed."""

    def check(case: Case, printed: float) -> Parts:
        for protocol, fields in ORDERS.items():
            on, off = case.find("rte", online, chunk, **fields), case.find("rte", offline)
            if on and off:
                found = on.mean - off.mean
                # The least deviation of a paired difference of that size over the scored items.
                paired = 100 * sqrt(printed / 100 / on.scored)
                noise = 2 * sqrt(on.sd**2 + off.sd**2 + paired**2)
                figures = f"{on.mean:.2f} − {off.mean:.2f} = {found:.2f} points"
                figures += f" (printed {printed:g}, within {noise:.1f} matches)"
                yield Part(protocol, abs(found - printed) <= noise, figures)

    return check


def em_equal(case: Case, chunk: int) -> Parts:
    for protocol, fields in ORDERS.items():
        on, off = case.find("rte", "oem", chunk, **fields), case.find("rte", "em")
        if on and off:
            noise = max(2 * sqrt(on.sd**2 + off.sd**2), 100 / on.scored)
            figures = f"chunks of {chunk}: {on.mean:.2f} against {off.mean:.2f} offline"
            yield Part(protocol, abs(on.mean - off.mean) <= noise, figures)


def mmce_never_equal(case: Case, _: Any) -> Parts:
    off = case.find("rte", "mmce")
    for protocol, fields in ORDERS.items():
        runs = [(c, case.find("rte", "ommce", c, **fields)) for c in CHUNKS]
        gaps = [(c, s.mean - off.mean) for c, s in runs if s and off]
        if len(gaps) > 1:
            figures = ", ".join(f"{found:.2f} at {chunk}" for chunk, found in gaps)
            shrinks = all(a[1] >= b[1] for a, b in pairwise(gaps))
            yield Part(protocol, shrinks and gaps[-1][1] > 0, f"gaps {figures}")


def laa_band(case: Case, band: float) -> Parts:
    off = case.find("rte", "laa")
    for protocol, fields in ORDERS.items():
        runs = [(c, case.find("rte", "laa", c, **fields)) for c in CHUNKS]
        gaps = [(c, s.mean - off.mean) for c, s in runs if s and off]
        if gaps:
            chunk, most = max(gaps, key=lambda pair: abs(pair[1]))
            figures = f"at most {most:+.2f} points, in chunks of {chunk}"
            yield Part(protocol, abs(most) <= band, figures)


def laa_best(case: Case, printed: float) -> Parts:
    off, em, mmce = (case.find("rte", method) for method in ("laa", "em", "mmce"))
    for protocol, fields in ORDERS.items():
        runs = [case.find("rte", "laa", chunk, **fields) for chunk in CHUNKS]
        if off and em and mmce:
            best = min([off, *(s for s in runs if s)], key=lambda s: s.mean)
            right = judge(printed, best).word == MATCHES and best.mean > max(em.mean, mmce.mean)
            figures = f"best of LAA {best}, EM offline {em}, MMCE offline {mmce}"
            yield Part(protocol, right, figures)


# ── section 5.2.1: Table 2 and Figure 5 ──────────────────────────────────────────────────────


def ten_points(case: Case, _: Any) -> Parts:
    for protocol, fields in CROWDS.items():
        for data in SYNTHETIC:
            others = case.others(data, 0, **fields)
            ours = case.online(data, case.preset or "", 0, **fields)
            if ours and "oem" in others:
                em = others["oem"]
                less = em.mean - ours.mean
                printed = PAPER["table2"][data]["oem"][0] - PAPER["table2"][data]["bila"][0]
                noise = 2 * sqrt(em.sd**2 + ours.sd**2)
                figures = f"{title(data)}: BiLA {ours.mean:.2f}, {less:.2f} points below EM "
                figures += f"(Table 2: {printed:.2f}; noise {noise:.2f})"
                yield Part(protocol, less >= printed - noise, figures)
                yield Part(protocol, best_of(others) == "oem", f"{title(data)}: {_ranked(others)}")


def vote_second(case: Case, printed: float) -> Parts:
    for protocol, fields in STREAMS.items():
        for data in REAL:
            others = case.others(data, 0, **fields)
            ours = case.online(data, case.preset or "", 0, **fields)
            if ours and "mv" in others:
                less = others["mv"].mean - ours.mean
                figures = f"{title(data)}: BiLA {ours.mean:.2f}, {less:.2f} points below MV"
                yield Part(protocol, less >= printed, figures)
                yield Part(protocol, best_of(others) == "mv", f"{title(data)}: {_ranked(others)}")


def mmce_second(case: Case, _: Any) -> Parts:
    for protocol, data, words, fields in places():
        others = case.others(data, 1, **fields)
        ours = case.online(data, case.preset or "", 1, **fields)
        if "ommce" in others and ours and data != "age":
            best = best_of(others)
            figures = f"{words}: BiLA {ours.mean:.2f}, best of the others {name(best)}"
            yield Part(
                protocol, ours.mean < others[best].mean, f"{figures} {others[best].mean:.2f}"
            )
            yield Part(protocol, best == "ommce", f"{words}: {_ranked(others)}")


def _ranked(others: dict[str, Summary]) -> str:
    ranked = sorted(others, key=lambda method: others[method].mean)
    return "the others are " + ", ".join(f"{name(k)} {others[k].mean:.2f}" for k in ranked)


def mmce_iterations(case: Case, _: Any) -> Parts:
    for protocol, data, words, fields in places():
        small, big = (case.online(data, "ommce", place, **fields) for place in (0, 1))
        if small and big:
            less, more = small.average("rounds") or 0, big.average("rounds") or 0
            figures = f"{words}: {less:.1f} per small chunk, {more:.1f} per big one"
            yield Part(protocol, less > more, figures)


def overhead(case: Case, _: Any) -> Parts:
    ours = case.preset or ""
    for protocol, data, words, fields in places():
        runs = {k: case.online(data, k, 0, **fields) for k in ("mv", "oem", "laa", ours)}
        ms = {k: 1000 * (s.average("chunk_seconds") or 0) for k, s in runs.items() if s}
        if len(ms) == len(runs):
            figures = ", ".join(f"{name(k)} {value:.1f}" for k, value in ms.items())
            slow = [ms["laa"], ms[ours]]
            quick = ms["mv"] == min(ms.values()) and ms["oem"] < min(slow)
            right = quick and max(slow) < SAME_ORDER * min(slow)
            yield Part(protocol, right, f"{words}: {figures} ms per chunk")


def curve(case: Case, method: str, **fields: Any) -> list[list[float]]:
    """Error along RTE in chunks of 25 after the initial set."""
    found = case.online("rte", method, 0, **fields)
    return found.curve("curve") if found else []


def rise_then_drop(case: Case, _: Any) -> Parts:
    methods = ("mv", "oem", "ommce", "laa") if case.preset is None else (case.preset,)
    for protocol, fields in ORDERS.items():
        for method in methods:
            if points := curve(case, method, **fields):
                first, *rest = (error for _, error in points)
                rises, drops = max(rest) > first, rest[-1] < max(first, *rest)
                shape = f"{first:.1f}, at most {max(first, *rest):.1f}, {rest[-1]:.1f} at the end"
                yield Part(protocol, rises and drops, f"{name(method)}: {shape}")


def lowest_throughout(case: Case, _: Any) -> Parts:
    for protocol, fields in ORDERS.items():
        ours = curve(case, case.preset or "", **fields)
        others = [
            found for k in ("mv", "oem", "ommce", "laa") if (found := curve(case, k, **fields))
        ]
        if ours and others:
            lowest = [
                error <= min(other[i][1] for other in others) for i, (_, error) in enumerate(ours)
            ]
            yield Part(protocol, all(lowest), f"at {sum(lowest)} of {len(lowest)} points")


def chunk_size(case: Case, _: Any) -> Parts:
    """Figure 5(b), after the initial set of section 5.2.1, and beside it without one."""
    initial = PAPER["table2"]["rte"]["initial"]
    for start, words in ((initial, ""), (0, ", no initial set")):
        for protocol, fields in ORDERS.items():
            spans = {}
            for method in ("oem", "ommce", case.preset or ""):
                runs = [case.find("rte", method, c, initial=start, **fields) for c in CHUNKS]
                errors = [s.mean for s in runs if s]
                if len(errors) > 1:
                    spans[method] = max(errors) - min(errors)
            if len(spans) == 3:
                figures = ", ".join(f"{name(k)} {span:.2f}" for k, span in spans.items())
                steady = spans.pop(case.preset or "") < min(spans.values())
                figures = f"largest less smallest error: {figures}"
                yield Part(protocol + words, steady, figures, counts=start > 0)
