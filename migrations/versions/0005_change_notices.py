"""notices of change, so that a process may remember keys and collections.

Revision ID: 0005
Revises: 0004
"""

from service.db.migrate import execute_script

revision = "0005"
down_revision = "0004"

# What is not there is never remembered, so nobody waits for an INSERT. The last use of a key is
# no change of it.
NOTICES = """
CREATE FUNCTION braid.notice_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('braid_changes', '');
    RETURN NULL;
END $$;
CREATE TRIGGER notice_change
    AFTER DELETE OR UPDATE OF team_id, key_hash, scopes, collection_ids, expires_at, revoked_at
    ON braid.api_keys FOR EACH STATEMENT EXECUTE FUNCTION braid.notice_change();
CREATE TRIGGER notice_change AFTER DELETE OR UPDATE
    ON braid.teams FOR EACH STATEMENT EXECUTE FUNCTION braid.notice_change();
CREATE TRIGGER notice_change AFTER DELETE OR UPDATE
    ON braid.collections FOR EACH STATEMENT EXECUTE FUNCTION braid.notice_change();
CREATE TRIGGER notice_change AFTER DELETE OR UPDATE
    ON braid.generations FOR EACH STATEMENT EXECUTE FUNCTION braid.notice_change();
"""

REMOVE = """
DROP FUNCTION braid.notice_change CASCADE;
"""


def upgrade() -> None:
    execute_script(NOTICES)


def downgrade() -> None:
    execute_script(REMOVE)
