"""Waiting for a job to end."""

import asyncio

from service.db.jobs import JobInfo, get_job, job_status
from service.db.pool import Database
from service.errors import NotFoundError
from service.models import Collection

FIRST_SECONDS, LAST_SECONDS = 0.01, 0.25


async def wait_for_job(
    database: Database, collection: Collection, job_id: int, *, seconds: float
) -> JobInfo:
    """The job once it has ended, or as it is when the time is up; raises `NotFoundError`."""
    deadline = asyncio.get_running_loop().time() + seconds
    pause = FIRST_SECONDS
    while not await _has_ended(database, collection.team_id, job_id):
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            break
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, LAST_SECONDS)
    async with database.write(collection.team_id) as connection:
        job = await get_job(connection, collection.id, job_id)
    if job is None:
        raise NotFoundError("unknown job")
    return job


async def _has_ended(database: Database, team_id: int, job_id: int) -> bool:
    async with database.read(team_id) as connection:
        return await job_status(connection, job_id) not in ("pending", "processing")
