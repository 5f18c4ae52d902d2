"""who administered what, and when.

Revision ID: 0015
Revises: 0014
"""

from service.db.migrate import execute_script

revision = "0015"
down_revision = "0014"

# No role but the owner may read or write it. An entry outlives its key and what it was about.
LOG = """
CREATE TABLE braid.audit_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint REFERENCES braid.teams ON DELETE CASCADE,
    at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL CHECK (actor IN ('root', 'key')),
    key_id bigint CHECK ((key_id IS NULL) = (actor = 'root')),
    action text NOT NULL CHECK (length(action) BETWEEN 1 AND 64),
    target text NOT NULL CHECK (length(target) <= 256),
    details jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(details) = 'object')
);
CREATE INDEX ON braid.audit_log (team_id, id);
CREATE INDEX ON braid.audit_log (at);
ALTER TABLE braid.audit_log ENABLE ROW LEVEL SECURITY;
"""


def upgrade() -> None:
    execute_script(LOG)


def downgrade() -> None:
    execute_script("DROP TABLE braid.audit_log;")
