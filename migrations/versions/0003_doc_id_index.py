"""find the chunks of a document by its id, for filters.

Revision ID: 0003
Revises: 0002
"""

from service.db.migrate import execute_script

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    execute_script("CREATE INDEX chunks_doc_id ON braid.chunks (doc_id)")


def downgrade() -> None:
    execute_script("DROP INDEX braid.chunks_doc_id")
