"""teams, keys, collections, generations, documents, chunks, jobs and the queue.

Revision ID: 0001
Revises:
"""

from alembic import op
from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
from pgqueuer.domain.settings import DBSettings

from service.db.migrate import execute_script

revision = "0001"
down_revision = None

ROLES = """
DO $$
DECLARE role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['braid_search', 'braid_index'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
        IF NOT pg_has_role(current_user, role, 'SET') THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', role);
        END IF;
    END LOOP;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;  -- another database of this cluster is being migrated at the same moment
END $$;
CREATE EXTENSION IF NOT EXISTS vector;
GRANT USAGE ON SCHEMA braid TO braid_search, braid_index;
"""

TENANCY = """
CREATE TABLE braid.teams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (name ~ '^[a-zA-Z0-9_-]{1,64}$'),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO braid.teams (name) VALUES ('default');

CREATE TABLE braid.provider_credentials (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    name text NOT NULL CHECK (name ~ '^[a-zA-Z0-9_-]{1,64}$'),
    kind text NOT NULL CHECK (kind IN ('voyage', 'cohere', 'openai', 'anthropic', 'local')),
    base_url text CHECK (length(base_url) <= 2048),
    sealed_secret bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (team_id, name)
);

CREATE TABLE braid.flags (
    name text PRIMARY KEY CHECK (name IN ('contextual_retrieval', 'hybrid_search')),
    enabled boolean NOT NULL DEFAULT true,
    percentage smallint NOT NULL DEFAULT 100 CHECK (percentage BETWEEN 0 AND 100),
    teams jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(teams) = 'object')
);
INSERT INTO braid.flags (name) VALUES ('contextual_retrieval'), ('hybrid_search');
"""

COLLECTIONS = """
CREATE TABLE braid.collections (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    name text NOT NULL CHECK (name ~ '^[a-zA-Z0-9_-]{1,64}$'),
    search_mode text NOT NULL DEFAULT 'hybrid' CHECK (search_mode IN ('hybrid', 'vector', 'text')),
    fusion_method text CHECK (fusion_method IN ('rrf', 'dbsf')),
    weight_dense double precision CHECK (weight_dense BETWEEN 0 AND 1),
    weight_lexical double precision CHECK (weight_lexical BETWEEN 0 AND 1),
    rrf_k integer CHECK (rrf_k BETWEEN 1 AND 1000),
    fetch_k integer NOT NULL DEFAULT 40 CHECK (fetch_k BETWEEN 1 AND 1000),
    active_generation_id bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (team_id, name),
    CHECK ((weight_dense IS NULL) = (weight_lexical IS NULL)),
    CHECK (weight_dense + weight_lexical > 0)
);

CREATE TABLE braid.generations (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    collection_id bigint NOT NULL REFERENCES braid.collections ON DELETE CASCADE,
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('building', 'active', 'retired')),
    provider text NOT NULL CHECK (length(provider) BETWEEN 1 AND 64),
    model text CHECK (length(model) BETWEEN 1 AND 256),
    dim integer CHECK (dim BETWEEN 1 AND 16000),
    base_url text CHECK (length(base_url) <= 2048),
    language text NOT NULL DEFAULT 'simple' CHECK (length(language) BETWEEN 1 AND 63),
    analyzer text NOT NULL DEFAULT 'language' CHECK (analyzer IN ('language', 'simple', 'trigram')),
    chunk_size integer NOT NULL DEFAULT 512 CHECK (chunk_size BETWEEN 16 AND 8192),
    chunk_overlap integer NOT NULL DEFAULT 64 CHECK (chunk_overlap >= 0),
    k1 double precision NOT NULL DEFAULT 1.2 CHECK (k1 BETWEEN 0 AND 10),
    b double precision NOT NULL DEFAULT 0.75 CHECK (b BETWEEN 0 AND 1),
    row_budget integer NOT NULL DEFAULT 8000 CHECK (row_budget BETWEEN 100 AND 1000000),
    average_length double precision NOT NULL DEFAULT 100 CHECK (average_length > 0),
    context_version smallint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (chunk_overlap < chunk_size),
    CHECK ((provider = 'none') OR (model IS NOT NULL AND dim IS NOT NULL))
);
CREATE INDEX ON braid.generations (collection_id);
ALTER TABLE braid.collections ADD FOREIGN KEY (active_generation_id)
    REFERENCES braid.generations DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE braid.api_keys (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 128),
    key_hash bytea NOT NULL UNIQUE CHECK (length(key_hash) = 32),
    scopes text[] NOT NULL CHECK (
        cardinality(scopes) > 0 AND scopes <@ ARRAY['search', 'index', 'admin']),
    collection_ids bigint[],
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON braid.api_keys (team_id);
"""

DOCUMENTS = """
CREATE TABLE braid.documents (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    collection_id bigint NOT NULL REFERENCES braid.collections ON DELETE CASCADE,
    doc_id text COLLATE "C" NOT NULL CHECK (length(doc_id) BETWEEN 1 AND 512),
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'ready', 'error')),
    failure_reason text CHECK (length(failure_reason) <= 500),
    title text,
    source text,
    metadata jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    language text CHECK (length(language) BETWEEN 1 AND 63),
    summary text,
    text text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (collection_id, doc_id)
);

CREATE TABLE braid.jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    collection_id bigint NOT NULL REFERENCES braid.collections ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('ingest', 'reindex', 'index')),
    status text NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'processing', 'done', 'error')),
    error text CHECK (length(error) <= 500),
    warnings jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(warnings) = 'array'),
    documents integer NOT NULL DEFAULT 0 CHECK (documents >= 0),
    indexed integer NOT NULL DEFAULT 0 CHECK (indexed >= 0),
    failed integer NOT NULL DEFAULT 0 CHECK (failed >= 0),
    usage jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(usage) = 'object'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON braid.jobs (collection_id, id DESC);

-- One accepted version of one document, waiting for the worker; ids give the order.
CREATE TABLE braid.ingests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    team_id bigint NOT NULL REFERENCES braid.teams ON DELETE CASCADE,
    job_id bigint NOT NULL REFERENCES braid.jobs ON DELETE CASCADE,
    document_id bigint NOT NULL REFERENCES braid.documents ON DELETE CASCADE,
    mode text NOT NULL CHECK (mode IN ('replace', 'upsert')),
    status text NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'done', 'error', 'superseded')),
    attempts smallint NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    failure_reason text CHECK (length(failure_reason) <= 500),
    payload bytea,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON braid.ingests (job_id, id);
CREATE INDEX ON braid.ingests (document_id);
CREATE INDEX ingests_pending ON braid.ingests (document_id, id) WHERE status = 'pending';
"""

CHUNKS = """
CREATE SEQUENCE braid.chunk_row_seq;
CREATE TABLE braid.chunks (
    generation_id bigint NOT NULL,
    id bigint NOT NULL DEFAULT nextval('braid.chunk_row_seq'),
    team_id bigint NOT NULL,
    document_id bigint NOT NULL,
    type text NOT NULL CHECK (type IN ('chunk', 'summary')),
    chunk_id text COLLATE "C" NOT NULL CHECK (length(chunk_id) BETWEEN 1 AND 600),
    doc_id text COLLATE "C" NOT NULL,
    position integer NOT NULL CHECK (position >= 0),
    title text,
    source text,
    metadata jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(metadata) = 'object'),
    text text NOT NULL,
    context text,
    start_offset integer,
    end_offset integer,
    content_hash bytea NOT NULL CHECK (length(content_hash) = 16),
    length integer NOT NULL DEFAULT 0 CHECK (length >= 0),
    embedding halfvec,
    bm25 sparsevec,
    tsv tsvector,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (generation_id, id),
    UNIQUE (generation_id, document_id, type, chunk_id),
    CHECK ((start_offset IS NULL) = (end_offset IS NULL)),
    CHECK (end_offset >= start_offset AND start_offset >= 0)
) PARTITION BY LIST (generation_id);
ALTER TABLE braid.chunks ALTER embedding SET STORAGE MAIN, ALTER bm25 SET STORAGE MAIN,
    ALTER tsv SET STATISTICS 500;
CREATE INDEX chunks_tsv ON braid.chunks USING gin (tsv) WITH (fastupdate = off);
CREATE INDEX chunks_metadata ON braid.chunks USING gin (metadata jsonb_path_ops)
    WITH (fastupdate = off);
CREATE INDEX chunks_document ON braid.chunks (generation_id, document_id, position);

-- Document side of BM25 (Robertson & Zaragoza 2009): saturated, length-normalized tf a lexeme
-- at the lexeme's stable 28-bit position; at most 16,000 entries, the strongest first.
CREATE FUNCTION braid.bm25_document(
    tsv tsvector, length integer, average_length double precision,
    k1 double precision, b double precision)
RETURNS sparsevec LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('{' || coalesce(string_agg(place || ':' || impact, ','), '')
            || '}/268435456')::sparsevec
    FROM (
        SELECT ('x' || substr(md5(lexeme), 1, 7))::bit(28)::int + 1 AS place,
               sum(tf * (k1 + 1)
                   / (tf + k1 * (1 - b + b * length / average_length)))::real AS impact
        FROM (SELECT lexeme, coalesce(cardinality(positions), 1)::double precision AS tf
              FROM unnest(tsv)) AS counted
        GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 16000
    ) AS weighted
$$;

CREATE FUNCTION braid.document_length(tsv tsvector)
RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(sum(coalesce(cardinality(positions), 1)), 0)::integer FROM unnest(tsv)
$$;

-- The table of one generation: made detached, then attached, so that no search waits.
CREATE FUNCTION braid.create_partition(generation bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('CREATE TABLE braid.chunks_%1$s (LIKE braid.chunks INCLUDING ALL)', generation);
    EXECUTE format('ALTER TABLE braid.chunks_%1$s ADD CHECK (generation_id = %1$s)', generation);
    EXECUTE format('ALTER TABLE braid.chunks ATTACH PARTITION braid.chunks_%1$s '
                   'FOR VALUES IN (%1$s)', generation);
END $$;

CREATE FUNCTION braid.drop_partition(generation bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS braid.chunks_%s', generation);
END $$;
"""

# The second wall: a role sees the rows of the team that its transaction names, and no others.
ISOLATION = """
CREATE FUNCTION braid.current_team() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT nullif(current_setting('braid.team', true), '')::bigint
$$;
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['collections', 'generations', 'documents', 'jobs', 'ingests',
                                'chunks', 'provider_credentials', 'api_keys'] LOOP
        EXECUTE format('ALTER TABLE braid.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY team ON braid.%I TO braid_search, braid_index
                        USING (team_id = (SELECT braid.current_team()))', name);
    END LOOP;
END $$;
-- Row-level security would keep the planner off the GIN index: `@@` is not leakproof, so it must
-- run after the policy. A plain view is the same wall for a role that may read nothing else.
CREATE VIEW braid.searchable AS
    SELECT * FROM braid.chunks WHERE team_id = (SELECT braid.current_team());
GRANT SELECT ON braid.collections, braid.generations, braid.documents, braid.jobs, braid.searchable
    TO braid_search;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA braid TO braid_index;
REVOKE ALL ON braid.teams, braid.flags, braid.api_keys FROM braid_index;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA braid TO braid_index;
REVOKE ALL ON FUNCTION braid.create_partition, braid.drop_partition FROM PUBLIC;
GRANT EXECUTE ON FUNCTION braid.create_partition, braid.drop_partition TO braid_index;
"""


def upgrade() -> None:
    execute_script("CREATE SCHEMA IF NOT EXISTS braid;" + ROLES)
    for script in (TENANCY, COLLECTIONS, DOCUMENTS, CHUNKS):
        execute_script(script)
    queue = QueryBuilderEnvironment(DBSettings(db_schema="braid"))
    execute_script(queue.build_install_query(create_schema=False))
    execute_script(ISOLATION)


def downgrade() -> None:
    op.execute("DROP SCHEMA braid CASCADE")
