"""batches of passages that a provider writes headers for.

Revision ID: 0011
Revises: 0010
"""

from service.db.migrate import execute_script

revision = "0011"
down_revision = "0010"

BATCHES = """
CREATE TABLE braid.context_batches (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    job_id bigint NOT NULL REFERENCES braid.jobs ON DELETE CASCADE,
    generation_id bigint NOT NULL REFERENCES braid.generations ON DELETE CASCADE,
    provider_batch text CHECK (length(provider_batch) BETWEEN 1 AND 256),
    last_ingest bigint NOT NULL,
    complete boolean NOT NULL,
    read_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON braid.context_batches (job_id);
CREATE INDEX ON braid.context_batches (generation_id);
CREATE INDEX ON braid.context_batches (team_id);
ALTER TABLE braid.context_batches ENABLE ROW LEVEL SECURITY;
CREATE POLICY team ON braid.context_batches TO braid_search, braid_index
    USING (team_id = (SELECT braid.current_team()));
GRANT SELECT, INSERT, UPDATE, DELETE ON braid.context_batches TO braid_index;
"""


def upgrade() -> None:
    execute_script(BATCHES)


def downgrade() -> None:
    execute_script("DROP TABLE braid.context_batches;")
