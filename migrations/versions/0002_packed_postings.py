"""packed postings of large generations.

Revision ID: 0002
Revises: 0001
"""

from service.db.migrate import execute_script

revision = "0002"
down_revision = "0001"

SEGMENTS = """
-- A segment holds the postings of the rows of a generation with lower <= id < upper that were there
-- when it was packed. Rows past the newest segment are fresh: they are found through the GIN index.
CREATE TABLE braid.segments (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    generation_id bigint NOT NULL REFERENCES braid.generations ON DELETE CASCADE,
    lower bigint NOT NULL,
    upper bigint NOT NULL,
    rows integer NOT NULL CHECK (rows >= 0),
    average_length double precision NOT NULL CHECK (average_length > 0),
    row_ids bytea NOT NULL,
    documents bytea NOT NULL,
    summaries bytea NOT NULL,
    retired_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (lower < upper)
);
CREATE INDEX ON braid.segments (generation_id, lower);
-- One list for each lexeme of a segment: n row numbers (int4, ascending), then n impacts (1 byte).
CREATE TABLE braid.postings (
    segment_id bigint NOT NULL REFERENCES braid.segments ON DELETE CASCADE,
    lexeme integer NOT NULL,
    team_id bigint NOT NULL,
    rows integer NOT NULL CHECK (rows > 0),
    data bytea NOT NULL,
    PRIMARY KEY (segment_id, lexeme)
);
ALTER TABLE braid.postings ALTER data SET STORAGE EXTERNAL;
ALTER TABLE braid.segments ALTER row_ids SET STORAGE EXTERNAL,
    ALTER documents SET STORAGE EXTERNAL, ALTER summaries SET STORAGE EXTERNAL;

ALTER TABLE braid.segments ENABLE ROW LEVEL SECURITY;
ALTER TABLE braid.postings ENABLE ROW LEVEL SECURITY;
CREATE POLICY team ON braid.segments TO braid_search, braid_index
    USING (team_id = (SELECT braid.current_team()));
CREATE POLICY team ON braid.postings TO braid_search, braid_index
    USING (team_id = (SELECT braid.current_team()));
GRANT SELECT ON braid.segments, braid.postings TO braid_search;
GRANT SELECT, INSERT, UPDATE, DELETE ON braid.segments, braid.postings TO braid_index;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA braid TO braid_index;
"""


def upgrade() -> None:
    execute_script(SEGMENTS)


def downgrade() -> None:
    execute_script("DROP TABLE braid.postings, braid.segments")
