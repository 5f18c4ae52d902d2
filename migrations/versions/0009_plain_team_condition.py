"""the search role's view names its team without a function, which each statement would inline anew.

Revision ID: 0009
Revises: 0008
"""

from service.db.migrate import execute_script

revision = "0009"
down_revision = "0008"

VIEW = """
CREATE OR REPLACE VIEW braid.searchable AS
    SELECT generation_id, id, team_id, document_id, type, chunk_id, doc_id, position, title,
           source, metadata, text, context, start_offset, end_offset, content_hash, length,
           embedding, bm25, tsv, created_at
    FROM braid.chunks WHERE team_id = (SELECT TEAM)
"""


def upgrade() -> None:
    execute_script(VIEW.replace("TEAM", "nullif(current_setting('braid.team', true), '')::bigint"))


def downgrade() -> None:
    execute_script(VIEW.replace("TEAM", "braid.current_team()"))
