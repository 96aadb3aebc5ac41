"""The page of `gold.py`: targets and tables, from its results."""

import numpy as np

__all__ = ["CROWDS", "JURIES", "LARGE", "LARGE_DRAWS", "report"]

COMMAND = "LABELQUORUM_DATA=… python3 run.py python experiments/trust/gold.py"
FOUR = tuple(
    f"llmbar_{name}"
    for name in ("natural", "adversarial_manual", "adversarial_neighbor", "adversarial_gptinst")
)
JURIES = (*FOUR, "llmbar_one_prompt", "care_civilcomments", "valence5", "paclabels_stance")
CROWDS = [
    "adult2_all",
    "adult2_gold",
    "cifar10n",
    "face",
    "fact_eval",
    "fej2013",
    "mediaeval2013_q2",
    "metaphor_novelty",
    "relevance",
    "rte",
    "sentiment_polarity_amt",
    "sentiment_tweets",
    "trec2010",
    "weather_cf",
    "web",
    "zencrowd_us",
]  # 300 truths or more
LARGE = 2000  # tasks: fewer draws are streamed
LARGE_DRAWS = 5


def targets(cells):
    """The promises of the issue: (text, measured, limit)."""
    at = {(one["set"], one["n"]): one for one in cells}

    def mean(names, n, key):
        values = [at[name, n][key] for name in names if key in at.get((name, n), {})]
        return float(np.mean(values)) if values else None

    rows = []
    for key in ("offline", "online"):
        rows.append((f"four llmbar sets, 20 gold, {key}", mean(FOUR, 20, key), 7.5))
        rows.append((f"those with 90 tasks, 50 gold, {key}", mean(FOUR, 50, key), 4.5))
        for name, limits in (
            ("llmbar_one_prompt", {20: 27, 50: 20, 100: 18}),
            ("care_civilcomments", {50: 25.5, 100: 24.5, 500: 22.5}),
        ):
            for n, limit in limits.items():
                rows.append((f"{name}, {n} gold, {key}", mean([name], n, key), limit))
        worse = {
            (one["set"], one["n"]): one[key]
            - min(one[k] for k in ("unsupervised", "stack", "scores", "judge") if k in one)
            for one in cells
            if one["set"] in JURIES and one["n"] and key in one
        }
        if worse:
            where = max(worse, key=worse.get)
            text = f"worse than the best of the others, at most, {key}: {where[0]}, {where[1]} gold"
            rows.append((text, worse[where], 1.5))
    hurt = {
        one["set"]: one["offline"] - one["unsupervised"]
        for one in cells
        if one["set"] in CROWDS and one["n"] == 20
    }
    if hurt:
        most = max(hurt, key=hurt.get)
        rows.append((f"20 gold on a crowd, at most: {most}", hurt[most], 0.3))
        rows.append(("20 gold on crowds, mean", float(np.mean(list(hurt.values()))), 0.0))
        rows.append(("ECE of crowds, 50 gold", mean(CROWDS, 50, "offline_ece"), 4.0))
        text = "of it, by chance with this many tasks, were every probability right"
        rows.append((text, mean(CROWDS, 50, "offline_noise_ece"), None))
    return [row for row in rows if row[1] is not None]


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def shown(one, key):
    return f"{one[key]:.1f}" if key in one else "–"


def report(results):
    cells = results["cells"]
    text = ["# What gold is worth\n", f"`{COMMAND}`\n"]
    text.append(
        "Error in % on the other tasks, means over random draws of gold. ECE in %, 10 bins.\n"
    )
    rows = [
        (name, f"{value:.2f}", "–", "–")
        if limit is None
        else (name, f"{value:.2f}", limit, "yes" if value <= limit else "**no**")
        for name, value, limit in targets(cells)
    ]
    text.append(table(("target", "measured", "at most", "met"), rows))
    keys = ("unsupervised", "stack", "scores", "judge", "offline", "online", "emitted")
    keys += ("offline_ece", "online_ece", "emitted_ece")
    rows = [
        (one["set"], one["n"], one["draws"], *(shown(one, key) for key in keys))
        for one in cells
        if one["set"] in JURIES
    ]
    text.append("## Juries\n")
    text.append(f"Sets of more than {LARGE:,} tasks are streamed in {LARGE_DRAWS} of the draws.\n")
    text.append(table(("set", "gold", "draws", *keys), rows))
    keys = ("unsupervised", "offline", "unsupervised_ece", "offline_ece", "offline_noise_ece")
    rows = [
        (one["set"], one["n"], one["draws"], *(shown(one, key) for key in keys))
        for one in cells
        if one["set"] in CROWDS and one["n"]
    ]
    text.append("## Crowds with 300 truths or more\n")
    text.append(table(("set", "gold", "draws", *keys), rows))
    if variants := results.get("variants"):
        families = list(variants["left_out"])
        rows = [
            (name, *(f"{errors[f]:.2f}" for f in families))
            for name, errors in variants["errors"].items()
        ]
        left_out = [variants["left_out"][f] for f in families]
        rows.append(
            ("chosen on other families", *(f"{o['error']:.2f} ({o['chosen']})" for o in left_out))
        )
        text.append("## Other constants of the stack\n")
        text.append(
            f"Mean offline error with 20 and 50 gold, {variants['draws']} draws. The last line is "
            "the variant that is best on the other families. What is committed was chosen with the "
            "sets and targets above in view; the last line is what can be expected elsewhere.\n"
        )
        text.append(table(("variant", *families), rows))
    return "\n".join(text)
