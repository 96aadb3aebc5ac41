"""Compare the present code with `goldens.json`: what a restructuring must not change.

python3 run.py python tests/goldens.py --check [PART …]   print a table; exit 1 on a difference
python3 run.py python tests/goldens.py --write            record the present code, on purpose

On the machine that recorded them, goldens are compared byte for byte. The last digits of a float
depend on the processor and on the versions of JAX and NumPy. Elsewhere digests are therefore
skipped, and numbers may differ by 1e-6, as in `numpy.allclose(rtol=1e-6, atol=1e-6)`.
"""

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import golden_parts

PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "files": golden_parts.files,
    "sqlite": golden_parts.on_sqlite,
    "postgresql": golden_parts.on_postgresql,
    "models": golden_parts.models,
}
FILE = Path(__file__).with_suffix(".json")
TOLERANCE = 1e-6
LINE_LENGTH = 120
_DECIMAL = re.compile(r"(\d+\.\d+(?:e[+-]?\d+)?)")


def machine() -> dict[str, Any]:
    """Return what decides the last digits of a float."""
    cpuinfo = Path("/proc/cpuinfo")  # Linux
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    processor = dict(re.findall(r"^(model name|flags)\s*: (.*)$", text, re.MULTILINE))
    return {
        "processor": processor.get("model name", platform.processor()),
        "features": golden_parts.sha256(processor.get("flags", "").encode())[:16],
        "cores": os.cpu_count(),
        "system": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **{name: version(name) for name in ("jax", "jaxlib", "numpy", "safetensors")},
    }


def read() -> tuple[bool, dict[str, Any]]:
    """Return whether this machine recorded the goldens, and the goldens of each part."""
    if not FILE.exists():
        raise FileNotFoundError(
            f"{FILE.name} is missing, so there is nothing to compare with. Record the present code "
            "with `python3 run.py python tests/goldens.py --write`, and commit the file."
        )
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    return recorded["machine"] == machine(), recorded["goldens"]


def check(part: str, found: dict[str, Any], only: Collection[str] = ()) -> dict[str, list[str]]:
    """Return for each golden of a part the differences from what was recorded.

    Parameters
    ----------
    only
        The goldens to look at; all of the part unless given.
    """
    strict, recorded = read()
    before, now = recorded[part], json.loads(json.dumps(found))
    goldens = only or before | now
    return {
        name: list(differences(before.get(name), now.get(name), strict, name)) for name in goldens
    }


def differences(before: Any, now: Any, strict: bool, where: str) -> Iterator[str]:
    """Yield one line for each difference between two JSON values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before | now:
            if strict or key != "sha256":
                yield from differences(before.get(key), now.get(key), strict, f"{where} / {key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, strict, f"{where} / {index}")
    elif not (same(before, now) if strict else close(before, now)):
        shown = [json.dumps(value, ensure_ascii=False)[:LINE_LENGTH] for value in (before, now)]
        yield f"{where}: was {shown[0]}, is {shown[1]}"


def same(before: Any, now: Any) -> bool:
    """Return whether two JSON values are equal, NaN with NaN."""
    return json.dumps(before) == json.dumps(now)


def close(before: Any, now: Any) -> bool:
    """Return whether two JSON values are equal up to the tolerance, numbers within text too."""
    if isinstance(before, float) and isinstance(now, float):
        return same(before, now) or abs(before - now) <= TOLERANCE * (1 + abs(before))
    if isinstance(before, str) and isinstance(now, str):
        pieces, others = _DECIMAL.split(before), _DECIMAL.split(now)
        if pieces[::2] != others[::2]:
            return False
        return all(map(close, map(float, pieces[1::2]), map(float, others[1::2])))
    return same(before, now)


def pretty(value: Any, indent: str = "") -> str:
    """Return JSON that breaks lines only where they would be too long, for readable diffs."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(text) <= LINE_LENGTH:
        return text
    deeper, brackets = indent + " ", "[]"
    if isinstance(value, dict):
        brackets = "{}"
        inner = [f"{json.dumps(key)}: {pretty(one, deeper)}" for key, one in value.items()]
    else:
        inner = [pretty(one, deeper) for one in value]
    lines = f",\n{deeper}".join(inner)
    return f"{brackets[0]}\n{deeper}{lines}\n{indent}{brackets[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", nargs="*", choices=PARTS, metavar="PART", help="all, or these")
    action.add_argument("--write", action="store_true", help="all parts, from one machine")
    arguments = parser.parse_args()
    if arguments.write:
        recorded = {"machine": machine(), "goldens": {part: make() for part, make in PARTS.items()}}
        FILE.write_text(pretty(recorded) + "\n", encoding="utf-8")
        print(f"Wrote {FILE}: {FILE.stat().st_size:,} bytes.")
        return 0
    strict, _ = read()
    print("The same machine: byte for byte." if strict else "Another machine: to 1e-6.")
    found = {}
    for part in arguments.check or PARTS:
        for name, lines in check(part, PARTS[part]()).items():
            found[part, name] = lines
            print(f"{'differs' if lines else 'equal':8}{part:12}{name}", flush=True)
    wrong = [f"{part} / {line}" for (part, _), lines in found.items() for line in lines]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    n_equal = sum(not lines for lines in found.values())
    print(f"Equal: {n_equal}. Different: {len(found) - n_equal}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
