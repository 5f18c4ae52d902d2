"""how a collection's candidates are reranked.

Revision ID: 0008
Revises: 0007
"""

from service.db.migrate import execute_script

revision = "0008"
down_revision = "0007"

RERANK = """
ALTER TABLE braid.collections
    ADD COLUMN rerank_enabled boolean NOT NULL DEFAULT false,
    ADD COLUMN rerank_provider text CHECK (length(rerank_provider) BETWEEN 1 AND 64),
    ADD COLUMN rerank_model text CHECK (length(rerank_model) BETWEEN 1 AND 256),
    ADD COLUMN rerank_top_n integer NOT NULL DEFAULT 50 CHECK (rerank_top_n BETWEEN 1 AND 1000),
    ADD COLUMN rerank_timeout_ms integer NOT NULL DEFAULT 800
        CHECK (rerank_timeout_ms BETWEEN 1 AND 60000);
"""


def upgrade() -> None:
    execute_script(RERANK)


def downgrade() -> None:
    execute_script("""
        ALTER TABLE braid.collections
            DROP COLUMN rerank_enabled, DROP COLUMN rerank_provider, DROP COLUMN rerank_model,
            DROP COLUMN rerank_top_n, DROP COLUMN rerank_timeout_ms;
    """)
