"""${message}.

Revision ID: ${up_revision}
Revises: ${down_revision | comma,n}
"""

from service.db.migrate import execute_script

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else 'execute_script("")'}


def downgrade() -> None:
    ${downgrades if downgrades else 'execute_script("")'}
