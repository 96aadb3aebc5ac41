"""What alembic runs: the steps that are missing, on the connection it is handed."""

from alembic import context

from labelquorum.store.database.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
