"""The report: a Markdown and a JSON file for each part, one table of all targets, and pictures.

Every verdict and every sentence that tells a result is put together from the figures.
docs/generate.py puts the Markdown on docs/accuracy.md.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import figures
from cells import HERE, Measured, Plan
from real import benchmark, chunk_sizes, ten_sets
from simulated import calibration, paper, robustness
from targets import TARGET_HEAD, Part, PartMaker, Scores, Target, table

SPEEDS = HERE.parents[1] / "benchmarks" / "results"
PICTURES = {
    "chunks": ("chunk_sizes", "Emitted and final error by chunk size"),
    "calibration": ("reliability", "How often answers are right, by the confidence they are given"),
}
SMOKE = (
    "**A smoke run: a few small cells that show whether everything works. No figure is of worth.**"
)


def speed(scores: Scores) -> Part:
    """What benchmarks/engine.py promised and measured; nothing is run."""
    part = Part("Speed")
    lines, rows = [], []
    for name, title in (("engine", "bila"), ("engine-recipe", "bila:recipe")):
        file = SPEEDS / f"{name}.json"
        if not file.exists():
            continue
        reply = json.loads(file.read_text(encoding="utf-8"))
        for row in reply["verdicts"]:
            rows.append({"method": title, **row})
            holds = "met" if row["holds"] else "**not met**"
            figures_ = [f"{row['measured']:,.4g}", f"{row['limit']:,.4g}"]
            lines.append([f"`{title}`: {row['promise']}", *figures_, holds])
        part.say(f"`{title}` was measured by `{reply['command']} --save`.")
    part.add("speed", table(["promise", "measured", "limit", ""], lines), rows)
    part.say("More is in [Performance](../../../docs/performance.md).")
    return part


PARTS: dict[str, PartMaker] = {
    "ten": ten_sets,
    "benchmark": benchmark,
    "paper": paper,
    "chunks": chunk_sizes,
    "calibration": calibration,
    "robustness": robustness,
    "speed": speed,
}


def write_all(measured: Measured, plan: Plan, made: Mapping[str, Any], results: Path) -> None:
    """Write everything the report consists of."""
    scores = Scores(measured, plan)
    pictures = set()
    for name, draw in figures.FIGURES.items():
        picture = draw(scores)
        if picture is not None:
            figures.save(picture, results / f"{name}.svg")
            pictures.add(name)
    every: list[tuple[str, Target]] = []
    for name, make in PARTS.items():
        part = make(scores)
        every += [(name, target) for target in part.targets]
        _write_json(
            results / f"{name}.json",
            {
                "made": made,
                "title": part.title,
                "targets": [target.to_json(name) for target in part.targets],
                "rows": part.rows,
            },
        )
        text = _page(part, _picture(name, pictures), _done(measured, plan, name, made))
        (results / f"{name}.md").write_text(_headed(text, made), encoding="utf-8")
    reply = [target.to_json(name) for name, target in every]
    _write_json(results / "targets.json", {"made": made, "targets": reply})
    n_done, n_cells = measured.done(plan.cells())
    text = _targets(every, made, n_cells - n_done)
    (results / "targets.md").write_text(_headed(text, made), encoding="utf-8")


def _targets(every: list[tuple[str, Target]], made: Mapping[str, Any], missing: int) -> str:
    verdicts = [target.verdict for _, target in every]
    counts = ", ".join(
        f"{verdicts.count(verdict)} {verdict}" for verdict in ("met", "not met", "not measured")
    )
    states = made["states_of_code"]
    code = "one state of the code" if states == 1 else f"{states} states of the code"
    short = f" **{missing:,} runs of the plan are missing.**" if missing else ""
    return (
        f"Of {len(every)} targets {counts}.\n\n"
        f"{table(TARGET_HEAD, (target.line() for _, target in every))}\n"
        f"Made by `{made['command']}`: {made['cells']:,} runs of {code}, "
        f"{made['cell_seconds'] / 60:.0f} minutes of processor time; labelquorum "
        f"{made['labelquorum']}, JAX {made['jax']}, NumPy {made['numpy']}, {made['machine']}."
        f"{short}\n"
    )


def _page(part: Part, picture: str, done: str) -> str:
    targets = [table(TARGET_HEAD, (t.line() for t in part.targets))] if part.targets else []
    return "\n".join([*targets, *part.blocks, *filter(None, [picture, done])])


def _picture(name: str, pictures: set[str]) -> str:
    file, caption = PICTURES.get(name, ("", ""))
    return f"![{caption}]({file}.svg)\n" if file in pictures else ""


def _done(measured: Measured, plan: Plan, name: str, made: Mapping[str, Any]) -> str:
    cells = plan.cells([name])
    n_done, n_cells = measured.done(cells)
    if not n_cells:
        return ""
    short = "" if n_done == n_cells else f" **{n_cells - n_done:,} of its runs are missing.**"
    seconds = sum(measured.results[cell]["seconds"] for cell in cells if cell in measured.results)
    return (
        f"{n_done:,} runs, {seconds / 60:.1f} minutes of processor time, by "
        f"`{made['command']} --only {name}`.{short}\n"
    )


def _headed(text: str, made: Mapping[str, Any]) -> str:
    return f"{SMOKE}\n\n{text}" if made["smoke"] else text


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
