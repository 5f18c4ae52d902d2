"""Runs the migrations on the connection that `service.db.migrate` hands over."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    transaction_per_migration=True,
    version_table="schema_revision",
    version_table_schema="braid",
)
with context.begin_transaction():
    context.run_migrations()
