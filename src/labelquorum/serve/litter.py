"""Python's garbage, in processes that live long and make rows by the thousand."""

import gc

__all__ = ["collect_seldom"]

NEW_OBJECTS = 50_000
"""Garbage is looked for after so many new objects: rows by the thousand are none, and by default
Python looks at all of them again and again."""


def collect_seldom() -> None:
    """Look for garbage seldom, and never among what is here now: the modules."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 20, 100)
