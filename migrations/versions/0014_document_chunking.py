"""documents that are split in a way of their own.

Revision ID: 0014
Revises: 0013
"""

from service.db.migrate import execute_script

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    execute_script("""
        ALTER TABLE braid.documents
            ADD COLUMN chunk_size integer CHECK (chunk_size BETWEEN 16 AND 8192),
            ADD COLUMN chunk_overlap integer CHECK (chunk_overlap BETWEEN 0 AND chunk_size - 1);
    """)


def downgrade() -> None:
    execute_script("ALTER TABLE braid.documents DROP COLUMN chunk_size, DROP COLUMN chunk_overlap;")
