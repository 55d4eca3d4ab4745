"""Runs migrations on the connection that topobench.db.migrate hands over."""

from alembic import context

from topobench.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by making a new one
)
with context.begin_transaction():
    context.run_migrations()
