"""Keys: who may read, write or govern, in one stream or in all.

A key is 256 random bits, shown once when it is made. The store keeps its SHA-256, from which
nobody gets the key back; for secrets that long, a slow hash would add nothing.
"""

import secrets
from hashlib import sha256
from typing import Any, NamedTuple

import sqlalchemy as sa

from labelquorum.errors import StateError
from labelquorum.ingest.validate import NAME_BYTES, is_printable_name
from labelquorum.store.database import schema
from labelquorum.store.store import Store

SCOPES = ("read", "write", "admin")
"""Each may do what those before it may."""

PREFIX = "lq_"


class Key(NamedTuple):
    """A key, without its secret."""

    id: int
    name: str
    digest: str
    scope: str
    stream: str | None  # None: all streams
    created_at: float
    revoked_at: float | None
    stream_key: int | None  # a name may be another stream's by now

    def shown(self) -> dict[str, Any]:
        """What people see of it."""
        inner = ("digest", "stream_key")
        return {name: value for name, value in self._asdict().items() if name not in inner}


class Keys:
    """The keys of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def make(self, name: str, scope: str, stream: str | None = None) -> tuple[Key, str]:
        """Make a key; its secret is returned here and never again.

        Parameters
        ----------
        name
            What it is for, in words of at most 256 bytes that can be printed.
        scope
            "read", "write" or "admin".
        stream
            The only stream it is for; all unless given.
        """
        if scope not in SCOPES:
            raise StateError(f"`scope` must be one of {list(SCOPES)}. Got {scope!r}.")
        if not is_printable_name(name):
            raise StateError(
                f"A key's name must be text that can be printed, of at most {NAME_BYTES} "
                f"bytes. Got {name[:40]!r}."
            )
        secret = PREFIX + secrets.token_urlsafe(32)
        streams = schema.streams.c
        with self._store.write() as connection:
            number = None
            if stream is not None:
                number = connection.scalar(sa.select(streams.id).where(streams.name == stream))
                if number is None:
                    raise StateError(f"There is no stream {stream!r} a key could be for.")
            digest, now = digest_of(secret), self._store.now()
            row = {"name": name, "digest": digest, "scope": scope, "stream": number}
            statement = schema.keys.insert().values(**row, created_at=now)
            made = connection.execute(statement).inserted_primary_key
            assert made is not None
        return Key(made[0], name, digest, scope, stream, now, None, number), secret

    def all(self) -> list[Key]:
        """All keys, revoked ones too, the oldest first."""
        keys, streams = schema.keys, schema.streams
        query = (
            sa.select(
                *(keys.c[name] for name in ("id", "name", "digest", "scope")),
                streams.c.name.label("of"),
                keys.c.created_at,
                keys.c.revoked_at,
                keys.c.stream,
            )
            .select_from(keys.outerjoin(streams, streams.c.id == keys.c.stream))
            .order_by(keys.c.id)
        )
        with self._store.read() as connection:
            return [Key(*tuple(row)) for row in connection.execute(query)]

    def revoke(self, number: int) -> bool:
        """Let a key open nothing from now on; False where there is no such key that does."""
        keys = schema.keys.c
        with self._store.write() as connection:
            done = connection.execute(
                schema.keys.update()
                .where(keys.id == number, keys.revoked_at.is_(None))
                .values(revoked_at=self._store.now())
            )
        return done.rowcount == 1


def digest_of(secret: str) -> str:
    """What is kept of a key."""
    return sha256(secret.encode()).hexdigest()
