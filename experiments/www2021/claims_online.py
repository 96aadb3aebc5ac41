"""What sections 2 and 5.2.1 of the paper say of streams, held against what was measured.

Every check gives parts: whether one instance of the statement is so, and the figures that say it.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import sqrt
from typing import Any

from cells import Measured, Summary
from verdicts import MATCHES, PAPER, PRESETS, judge

Part = tuple[bool, str]
Parts = Iterable[Part]

ORDERS = {"file": "file order", "random": "random orders"}
CROWDS = {"cifar10": "CIFAR-10", "pendigits": "Pendigits"}
CHUNKS = (25, 50, 100, 200, 400)  # 800 is all of RTE at once
NAMES = {"mv": "MV", "oem": "EM", "ommce": "MMCE", "laa": "LAA", "bcc": "BCC"}
SAME_ORDER = 10


def name(method: str) -> str:
    return NAMES.get(method, method)


# ── section 2: EM, MMCE and LAA online and offline ───────────────────────────────────────────


def gap(online: str, offline: str, chunk: int) -> Callable[[Measured, Any], Parts]:
    """The distance from offline after the last chunk, against the one printed."""

    def check(m: Measured, printed: float) -> Parts:
        for order, told in ORDERS.items():
            on, off = m("rte", online, chunk, order=order), m("rte", offline)
            if on and off:
                found = on.mean - off.mean
                # The least deviation of a paired difference of that size over so many items.
                paired = 100 * sqrt(printed / 100 / on.scored)
                noise = 2 * sqrt(on.sd**2 + off.sd**2 + paired**2)
                figures = f"{on.mean:.2f} − {off.mean:.2f} = {found:.2f} points"
                yield (
                    abs(found - printed) <= noise,
                    f"{told}: {figures} (within {noise:.1f} would match)",
                )

    return check


def em_equal(m: Measured, chunk: int) -> Parts:
    for order, told in ORDERS.items():
        on, off = m("rte", "oem", chunk, order=order), m("rte", "em")
        if on and off:
            noise = max(2 * sqrt(on.sd**2 + off.sd**2), 100 / on.scored)
            figures = f"{on.mean:.2f} against {off.mean:.2f} offline"
            yield abs(on.mean - off.mean) <= noise, f"{told}, chunks of {chunk}: {figures}"


def mmce_never_equal(m: Measured, _: Any) -> Parts:
    for order, told in ORDERS.items():
        off = m("rte", "mmce")
        gaps = [
            (c, s.mean - off.mean)
            for c in CHUNKS
            if off and (s := m("rte", "ommce", c, order=order))
        ]
        if len(gaps) > 1:
            figures = ", ".join(f"{found:.2f} at {chunk}" for chunk, found in gaps)
            shrinks = all(a[1] >= b[1] for a, b in pairwise(gaps))
            yield shrinks and gaps[-1][1] > 0, f"{told}: gaps {figures}"


def laa_band(m: Measured, band: float) -> Parts:
    for order, told in ORDERS.items():
        off = m("rte", "laa")
        found = [
            (c, s.mean - off.mean) for c in CHUNKS if off and (s := m("rte", "laa", c, order=order))
        ]
        if found:
            chunk, most = max(found, key=lambda pair: abs(pair[1]))
            yield abs(most) <= band, f"{told}: at most {most:+.2f} points, in chunks of {chunk}"


def laa_best(m: Measured, printed: float) -> Parts:
    found = [s for c in CHUNKS for o in ORDERS if (s := m("rte", "laa", c, order=o))]
    off, em, mmce = m("rte", "laa"), m("rte", "em"), m("rte", "mmce")
    if off and em and mmce:
        best = min([off, *found], key=lambda s: s.mean)
        above = best.mean > max(em.mean, mmce.mean)
        figures = f"best of LAA {best}, EM offline {em}, MMCE offline {mmce}"
        yield judge(printed, best).word == MATCHES and above, figures


# ── section 5.2.1: Table 2 and Figure 5 ──────────────────────────────────────────────────────


def online(m: Measured, data: str, method: str, place: int, order: str = "file") -> Summary | None:
    """A cell of Table 2; place 0 is the small chunk."""
    printed = PAPER["table2"][data]
    return m(data, method, printed["chunks"][place], initial=printed["initial"], order=order)


def places() -> list[tuple[str, str, str]]:
    """Where Table 2 was measured: data, order, and both in words."""
    rows = [(data, "file", title) for data, title in CROWDS.items()]
    return rows + [("rte", order, f"RTE in {told}") for order, told in ORDERS.items()]


def ten_points(m: Measured, printed: float) -> Parts:
    for data, title in CROWDS.items():
        others = {k: s for k in ("mv", "oem", "ommce", "laa") if (s := online(m, data, k, 0))}
        for preset in PRESETS:
            ours = online(m, data, preset, 0)
            if ours and "oem" in others:
                second = min(others, key=lambda k: others[k].mean)
                less = others[second].mean - ours.mean
                told = f"{preset} {less:.1f} points below {name(second)}"
                if less < 0:
                    told = f"{preset} {-less:.1f} points above {name(second)}"
                yield less >= printed and second == "oem", f"{title}: {told}"
    own = [PAPER["table2"][d]["oem"][0] - PAPER["table2"][d]["bila"][0] for d in CROWDS]
    told = " and ".join(f"{less:.2f}" for less in own)
    yield min(own) >= printed, f"the paper's own Table 2 gives {told}"


def vote_second(m: Measured, printed: float) -> Parts:
    for order, told in ORDERS.items():
        others = {
            k: s for k in ("mv", "oem", "ommce", "laa") if (s := online(m, "rte", k, 0, order))
        }
        for preset in PRESETS:
            ours = online(m, "rte", preset, 0, order)
            if ours and "mv" in others:
                second = min(others, key=lambda k: others[k].mean)
                more = others["mv"].mean - ours.mean
                figures = f"MV less {preset} {more:+.2f} points"
                best = f"the best of the others is {name(second)} with {others[second].mean:.2f}"
                yield second == "mv" and more >= printed, f"RTE in {told}: {figures}; {best}"
    own = {d: PAPER["table2"][d]["mv"][0] - PAPER["table2"][d]["bila"][0] for d in ("age", "rte")}
    yield (
        min(own.values()) >= printed,
        "the paper's own Table 2 gives "
        + " and ".join(f"{more:.2f} on {PAPER['table1'][d]['title']}" for d, more in own.items()),
    )


def mmce_second(m: Measured, _: Any) -> Parts:
    for data, order, title in places():
        others = {
            k: s for k in ("mv", "oem", "ommce", "laa") if (s := online(m, data, k, 1, order))
        }
        ours = {k: s for k in PRESETS if (s := online(m, data, k, 1, order))}
        if "ommce" in others and ours:
            ranked = sorted(others, key=lambda k: others[k].mean)
            best = [k for k, s in ours.items() if s.mean < others[ranked[0]].mean]
            below = f"{', '.join(best) or 'no preset'} below all others"
            place = f"MMCE is {_rank(ranked, 'ommce')} of the others"
            yield len(best) == len(ours) and ranked[0] == "ommce", f"{title}: {below}; {place}"
    printed = {k: v[1] for k, v in PAPER["table2"]["rte"].items() if k in (*NAMES, "bila")}
    rank = sorted(printed, key=lambda k: printed[k]).index("ommce") + 1
    yield rank == 2, f"in the paper's own Table 2, RTE, MMCE is number {rank} of {len(printed)}"


def _rank(ranked: list[str], method: str) -> str:
    place = ranked.index(method) + 1
    return "first" if place == 1 else "last" if place == len(ranked) else f"number {place}"


def mmce_iterations(m: Measured, _: Any) -> Parts:
    for data, order, title in places():
        small, big = online(m, data, "ommce", 0, order), online(m, data, "ommce", 1, order)
        if small and big:
            less, more = small.average("rounds") or 0, big.average("rounds") or 0
            yield less > more, f"{title}: {less:.1f} a small chunk, {more:.1f} a big one"


def overhead(m: Measured, _: Any) -> Parts:
    for data, order, title in places():
        runs = {k: online(m, data, k, 0, order) for k in ("mv", "oem", "laa", *PRESETS)}
        ms = {k: 1000 * (s.average("chunk_seconds") or 0) for k, s in runs.items() if s}
        if len(ms) == len(runs):
            told = ", ".join(f"{name(k)} {value:.1f}" for k, value in ms.items())
            networks = [ms[k] for k in ("laa", *PRESETS)]
            quick = ms["mv"] == min(ms.values()) and ms["oem"] < min(networks)
            yield (
                quick and max(networks) < SAME_ORDER * min(networks),
                f"{title}: {told} ms a chunk",
            )


def curves(m: Measured, order: str) -> dict[str, list[list[float]]]:
    """Error along RTE in chunks of 25 after the initial set, by method."""
    runs = {k: online(m, "rte", k, 0, order) for k in ("mv", "oem", "ommce", "laa", *PRESETS)}
    return {k: s.curve("curve") for k, s in runs.items() if s and s.curve("curve")}


def rise_then_drop(m: Measured, _: Any) -> Parts:
    for order, told in ORDERS.items():
        for method, points in curves(m, order).items():
            first, *rest = (error for _, error in points)
            rises, drops = max(rest) > first, rest[-1] < max(first, *rest)
            shape = f"{first:.1f}, at most {max(first, *rest):.1f}, {rest[-1]:.1f} at the end"
            yield rises and drops, f"{name(method)} in {told} {shape}"


def lowest_throughout(m: Measured, _: Any) -> Parts:
    for order, told in ORDERS.items():
        found = curves(m, order)
        others = [found[k] for k in ("mv", "oem", "ommce", "laa") if k in found]
        for preset in PRESETS:
            if preset in found and others:
                lowest = [
                    error <= min(other[i][1] for other in others)
                    for i, (_, error) in enumerate(found[preset])
                ]
                figures = f"at {sum(lowest)} of {len(lowest)} points"
                yield all(lowest), f"{preset} in {told}: {figures}"


def chunk_size(m: Measured, _: Any) -> Parts:
    for order, told in ORDERS.items():
        spans = {}
        for method in ("oem", "ommce", *PRESETS):
            errors = [s.mean for c in CHUNKS if (s := m("rte", method, c, order=order))]
            if len(errors) > 1:
                spans[method] = max(errors) - min(errors)
        if {"oem", "ommce"} < set(spans):
            ours = {k: span for k, span in spans.items() if k in PRESETS}
            figures = ", ".join(f"{name(k)} {span:.2f}" for k, span in spans.items())
            steady = max(ours.values()) < min(spans["oem"], spans["ommce"])
            yield steady, f"{told}, largest less smallest error: {figures}"
