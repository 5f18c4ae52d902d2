"""the approximate index of a generation's vectors.

Revision ID: 0006
Revises: 0005
"""

from service.db.migrate import execute_script

revision = "0006"
down_revision = "0005"

VECTOR_INDEX = """
ALTER TABLE braid.collections
    ADD COLUMN target_recall double precision NOT NULL DEFAULT 0.99
        CHECK (target_recall BETWEEN 0.5 AND 1),
    ADD COLUMN quantization text NOT NULL DEFAULT 'none' CHECK (quantization IN ('none', 'binary')),
    ADD COLUMN index_policy text NOT NULL DEFAULT 'auto'
        CHECK (index_policy IN ('auto', 'hnsw', 'exact'));
-- What is built and may be searched, and what was measured of it.
ALTER TABLE braid.generations
    ADD COLUMN index_quantization text CHECK (index_quantization IN ('none', 'binary')),
    ADD COLUMN index_rows bigint CHECK (index_rows >= 0),
    ADD COLUMN index_ef_search integer CHECK (index_ef_search BETWEEN 1 AND 1000),
    ADD COLUMN index_recall double precision CHECK (index_recall BETWEEN 0 AND 1),
    ADD COLUMN index_measured_at timestamptz,
    ADD COLUMN index_note text CHECK (length(index_note) <= 500),
    ADD COLUMN index_sample bigint[],
    ADD CHECK ((index_quantization IS NULL) = (index_rows IS NULL));
ALTER TABLE braid.jobs
    ADD COLUMN progress jsonb CHECK (jsonb_typeof(progress) = 'object');
-- A filter must not fetch what it compares from another table.
ALTER TABLE braid.chunks ALTER metadata SET STORAGE MAIN, ALTER doc_id SET STORAGE MAIN,
    ALTER title SET STORAGE MAIN, ALTER source SET STORAGE MAIN, ALTER chunk_id SET STORAGE MAIN;
"""


def upgrade() -> None:
    execute_script(VECTOR_INDEX)


def downgrade() -> None:
    execute_script("""
        ALTER TABLE braid.jobs DROP COLUMN progress;
        ALTER TABLE braid.generations
            DROP COLUMN index_quantization, DROP COLUMN index_rows, DROP COLUMN index_ef_search,
            DROP COLUMN index_recall, DROP COLUMN index_measured_at, DROP COLUMN index_note,
            DROP COLUMN index_sample;
        ALTER TABLE braid.collections
            DROP COLUMN target_recall, DROP COLUMN quantization, DROP COLUMN index_policy;
    """)
