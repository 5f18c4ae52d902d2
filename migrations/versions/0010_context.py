"""headers that situate chunks: how they are made, which are due, and what is made but not written.

Revision ID: 0010
Revises: 0009
"""

from service.db.migrate import execute_script

revision = "0010"
down_revision = "0009"

CONTEXT = """
ALTER TABLE braid.generations
    ADD COLUMN contextual jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(contextual) = 'object');
ALTER TABLE braid.chunks ADD COLUMN context_due boolean NOT NULL DEFAULT false;
CREATE INDEX chunks_context_due ON braid.chunks (generation_id, document_id) WHERE context_due;
ALTER TABLE braid.jobs DROP CONSTRAINT jobs_kind_check,
    ADD CONSTRAINT jobs_kind_check CHECK (kind IN ('ingest', 'reindex', 'index', 'context'));

-- Headers and vectors that were paid for and whose chunks are not written yet.
CREATE TABLE braid.prepared (
    generation_id bigint NOT NULL REFERENCES braid.generations ON DELETE CASCADE,
    document_id bigint NOT NULL,
    content_hash bytea NOT NULL CHECK (length(content_hash) = 16),
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    context text,
    embedding halfvec,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation_id, document_id, content_hash)
);
CREATE INDEX ON braid.prepared (document_id);
CREATE INDEX ON braid.prepared (team_id);

ALTER TABLE braid.prepared ENABLE ROW LEVEL SECURITY;
CREATE POLICY team ON braid.prepared TO braid_search, braid_index
    USING (team_id = (SELECT braid.current_team()));
GRANT SELECT, INSERT, UPDATE, DELETE ON braid.prepared TO braid_index;
"""


def upgrade() -> None:
    execute_script(CONTEXT)


def downgrade() -> None:
    execute_script("""
        DROP TABLE braid.prepared;
        DELETE FROM braid.jobs WHERE kind = 'context';
        ALTER TABLE braid.jobs DROP CONSTRAINT jobs_kind_check,
            ADD CONSTRAINT jobs_kind_check CHECK (kind IN ('ingest', 'reindex', 'index'));
        ALTER TABLE braid.chunks DROP COLUMN context_due;
        ALTER TABLE braid.generations DROP COLUMN contextual;
    """)
