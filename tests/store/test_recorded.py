"""The recorded streams of the goldens, in PostgreSQL; `test_goldens.py` has them in SQLite."""

import gc

import golden_parts
import goldens
import pytest


# The export of workers over HTTP asks for columns alone and leaves its cursor open.
@pytest.mark.filterwarnings("ignore:<psycopg.ServerCursor:ResourceWarning")
def test_postgresql_does_what_was_recorded(database):
    goldens.read()  # says what to do where nothing was recorded
    found = goldens.check("postgresql", golden_parts.on_postgresql(database))
    gc.collect()
    assert [line for lines in found.values() for line in lines] == []
