"""what each chunk stands under in its document, outermost heading first, one a line.

Revision ID: 0012
Revises: 0011
"""

from service.db.migrate import execute_script

revision = "0012"
down_revision = "0011"

VIEW = """
CREATE OR REPLACE VIEW braid.searchable AS
    SELECT generation_id, id, team_id, document_id, type, chunk_id, doc_id, position, title,
           source, metadata, text, context, start_offset, end_offset, content_hash, length,
           embedding, bm25, tsv, created_at, headings
    FROM braid.chunks
    WHERE team_id = (SELECT nullif(current_setting('braid.team', true), '')::bigint)
"""


def upgrade() -> None:
    execute_script(f"ALTER TABLE braid.chunks ADD COLUMN headings text; {VIEW}")


def downgrade() -> None:
    without = VIEW.replace(", headings", "").replace("CREATE OR REPLACE", "CREATE")
    execute_script(f"""
        DROP VIEW braid.searchable;
        {without};
        GRANT SELECT ON braid.searchable TO braid_search;
        ALTER TABLE braid.chunks DROP COLUMN headings;
    """)
