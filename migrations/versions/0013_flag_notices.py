"""notices of changed flags.

Revision ID: 0013
Revises: 0012
"""

from service.db.migrate import execute_script

revision = "0013"
down_revision = "0012"

NOTICES = """
CREATE TRIGGER notice_change AFTER UPDATE
    ON braid.flags FOR EACH STATEMENT EXECUTE FUNCTION braid.notice_change();
"""


def upgrade() -> None:
    execute_script(NOTICES)


def downgrade() -> None:
    execute_script("DROP TRIGGER notice_change ON braid.flags;")
