"""building, swapping and dropping generations; collections deleted at once.

Revision ID: 0004
Revises: 0003
"""

from service.db.migrate import execute_script

revision = "0004"
down_revision = "0003"

# Versions follow the order in which documents were published: see docs/adr on re-indexing.
DOCUMENTS = """
CREATE SEQUENCE braid.document_version_seq;
GRANT USAGE ON SEQUENCE braid.document_version_seq TO braid_index;
ALTER TABLE braid.documents
    ADD COLUMN version bigint NOT NULL DEFAULT nextval('braid.document_version_seq');
CREATE INDEX documents_version ON braid.documents (collection_id, version) WHERE status = 'ready';
ALTER TABLE braid.chunks ADD COLUMN own_vector boolean NOT NULL DEFAULT false;
"""

BUILDS = """
ALTER TABLE braid.generations DROP CONSTRAINT generations_state_check, ADD CHECK (
    state IN ('building', 'active', 'retired', 'discarded'));
CREATE UNIQUE INDEX generations_building ON braid.generations (collection_id)
    WHERE state = 'building';
ALTER TABLE braid.jobs DROP CONSTRAINT jobs_status_check, ADD CHECK (
    status IN ('pending', 'processing', 'done', 'error', 'paused', 'cancelled'));

-- How far a generation that is not active follows the documents: it holds each one of a version up
-- to built_to as it was then, unless it failed. Deletions and metadata reach it at once.
CREATE TABLE braid.builds (
    generation_id bigint PRIMARY KEY REFERENCES braid.generations ON DELETE CASCADE,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    job_id bigint REFERENCES braid.jobs ON DELETE SET NULL,
    built_to bigint NOT NULL DEFAULT 0,
    first_boundary bigint,
    attempts smallint NOT NULL DEFAULT 0,
    ingest_held_until timestamptz,
    retired_at timestamptz,
    expires_at timestamptz,
    CHECK ((retired_at IS NULL) = (expires_at IS NULL))
);
CREATE INDEX ON braid.builds (job_id);
CREATE TABLE braid.build_failures (
    generation_id bigint NOT NULL REFERENCES braid.builds ON DELETE CASCADE,
    document_id bigint NOT NULL REFERENCES braid.documents ON DELETE CASCADE,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    reason text NOT NULL CHECK (length(reason) <= 500),
    to_retry boolean NOT NULL DEFAULT false,
    PRIMARY KEY (generation_id, document_id)
);
CREATE INDEX ON braid.build_failures (document_id);

ALTER TABLE braid.builds ENABLE ROW LEVEL SECURITY;
ALTER TABLE braid.build_failures ENABLE ROW LEVEL SECURITY;
CREATE POLICY team ON braid.builds TO braid_search, braid_index
    USING (team_id = (SELECT braid.current_team()));
CREATE POLICY team ON braid.build_failures TO braid_search, braid_index
    USING (team_id = (SELECT braid.current_team()));
GRANT SELECT, INSERT, UPDATE, DELETE ON braid.builds, braid.build_failures TO braid_index;
"""

# A deletion removes the collection's row alone; what belonged to it is unreachable from then on
# and removed in the background.
DELETIONS = """
CREATE TABLE braid.deleted_collections (
    id bigint PRIMARY KEY,
    deleted_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE braid.documents DROP CONSTRAINT documents_collection_id_fkey;
ALTER TABLE braid.jobs DROP CONSTRAINT jobs_collection_id_fkey;
ALTER TABLE braid.generations DROP CONSTRAINT generations_collection_id_fkey;
DROP FUNCTION braid.drop_partition;
"""


def upgrade() -> None:
    for script in (DOCUMENTS, BUILDS, DELETIONS):
        execute_script(script)


def downgrade() -> None:
    execute_script("""
        DROP TABLE braid.build_failures, braid.builds, braid.deleted_collections;
        DELETE FROM braid.documents WHERE collection_id NOT IN (SELECT id FROM braid.collections);
        DELETE FROM braid.jobs WHERE collection_id NOT IN (SELECT id FROM braid.collections)
            OR status IN ('paused', 'cancelled');
        DELETE FROM braid.generations WHERE id NOT IN (
            SELECT active_generation_id FROM braid.collections);
        DROP INDEX braid.generations_building;
        ALTER TABLE braid.generations DROP CONSTRAINT generations_state_check,
            ADD CHECK (state IN ('building', 'active', 'retired')),
            ADD FOREIGN KEY (collection_id) REFERENCES braid.collections ON DELETE CASCADE;
        ALTER TABLE braid.jobs DROP CONSTRAINT jobs_status_check,
            ADD CHECK (status IN ('pending', 'processing', 'done', 'error')),
            ADD FOREIGN KEY (collection_id) REFERENCES braid.collections ON DELETE CASCADE;
        ALTER TABLE braid.chunks DROP COLUMN own_vector;
        ALTER TABLE braid.documents DROP COLUMN version,
            ADD FOREIGN KEY (collection_id) REFERENCES braid.collections ON DELETE CASCADE;
        DROP SEQUENCE braid.document_version_seq;
        CREATE FUNCTION braid.drop_partition(generation bigint)
        RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
        BEGIN
            EXECUTE format('DROP TABLE IF EXISTS braid.chunks_%s', generation);
        END $$;
        REVOKE ALL ON FUNCTION braid.drop_partition FROM PUBLIC;
        GRANT EXECUTE ON FUNCTION braid.drop_partition TO braid_index;
    """)
