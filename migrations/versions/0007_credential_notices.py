"""notices of changed provider credentials.

Revision ID: 0007
Revises: 0006
"""

from service.db.migrate import execute_script

revision = "0007"
down_revision = "0006"

NOTICES = """
CREATE TRIGGER notice_change AFTER DELETE OR UPDATE
    ON braid.provider_credentials FOR EACH STATEMENT EXECUTE FUNCTION braid.notice_change();
"""


def upgrade() -> None:
    execute_script(NOTICES)


def downgrade() -> None:
    execute_script("DROP TRIGGER notice_change ON braid.provider_credentials;")
