"""Ends ingest jobs early: what waits of them is given up."""

from service.db.documents import fail_documents, lock_documents
from service.db.pool import Connection

REASON = "its job was cancelled before it was indexed"

WAITING = """
SELECT DISTINCT document_id FROM braid.ingests WHERE job_id = $1 AND status = 'pending'
"""
# The worker holds the documents that it writes, so with them held no ingest is half done.
GIVE_UP = """
WITH waiting AS MATERIALIZED (
    SELECT id FROM braid.ingests WHERE job_id = $1 AND status = 'pending' ORDER BY id FOR UPDATE
)
UPDATE braid.ingests i SET status = 'superseded', payload = NULL
FROM waiting WHERE i.id = waiting.id RETURNING i.document_id
"""
NEVER_INDEXED = """
SELECT d.id FROM braid.documents d WHERE d.id = ANY($1) AND d.status = 'pending' AND NOT EXISTS (
    SELECT FROM braid.ingests i WHERE i.document_id = d.id AND i.status = 'pending')
"""
CANCEL = """
UPDATE braid.jobs SET status = 'cancelled', error = NULL, updated_at = now()
WHERE id = $1 AND status IN ('pending', 'processing') RETURNING id
"""


async def cancel_ingest_job(connection: Connection, job_id: int) -> bool:
    """Give up what waits of an ingest job; whether the job had not ended.

    Documents keep the version that is visible; those without one are in error.
    """
    waiting = await connection.fetch(WAITING, job_id)
    await lock_documents(connection, [row["document_id"] for row in waiting])
    given_up = await connection.fetch(GIVE_UP, job_id)
    if await connection.fetchval(CANCEL, job_id) is None:
        return False
    lost = await connection.fetch(NEVER_INDEXED, [row["document_id"] for row in given_up])
    await fail_documents(connection, {row["id"]: REASON for row in lost})
    return True
