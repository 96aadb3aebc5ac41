"""Both databases, as in the tests of the store."""

from record.conftest import database, databases, server, where  # noqa: F401
