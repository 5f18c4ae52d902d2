"""`braid worker`: runs indexing jobs without an API."""

import asyncio
import signal

from service.app import background, local_embedders, provider_services, worker_url
from service.cli.metrics_page import serving_metrics
from service.cli.parser import Arguments
from service.cli.serve import database_url
from service.db.changes import Changes
from service.db.flags import Flags
from service.db.pool import open_database
from service.db.preflight import check_schema
from service.indexing.conversion import Limits
from service.indexing.worker import Worker
from service.metrics import observing
from service.process import observe_process
from service.providers.contextualizers import Contextualizers
from service.settings import Settings, load_settings
from service.telemetry import configure_telemetry, log


def run(_arguments: Arguments) -> int:
    """Work until SIGINT or SIGTERM."""
    settings = load_settings()
    asyncio.run(_work(settings))
    return 0


async def _work(settings: Settings) -> None:
    dsn = database_url(settings)
    await check_schema(dsn)
    telemetry = configure_telemetry(settings, "worker")
    database = await open_database(dsn, size=settings.db_pool_size, pgbouncer=settings.db_pgbouncer)
    changes = Changes(worker_url(settings))
    flags = Flags(database, changes)
    await flags.refresh()
    outside = provider_services(settings, database, changes)
    embedders = local_embedders(settings, outside.accounts)
    worker = Worker(
        database,
        worker_url(settings),
        embedders,
        contextualizers=Contextualizers(outside.accounts),
        headers_allowed=flags.headers_allowed,
        concurrency=settings.worker_concurrency,
        index_memory_mb=settings.index_memory_mb,
        keep_seconds=settings.rollback_hours * 3600,
        audit_days=settings.audit_days,
        keep_jobs_seconds=settings.job_retention_days * 86_400,
        conversion=Limits(settings.file_memory_mb, settings.file_seconds, settings.file_pages),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    log.info("worker started", concurrency=settings.worker_concurrency)
    try:
        with (
            observing(database.observe, observe_process),
            serving_metrics(settings.host, settings.metrics_port),
        ):
            async with background("changes", changes.listen()), background("flags", flags.watch()):
                await worker.run()
    finally:
        await embedders.close()
        await outside.outbound.close()
        await database.close()
        telemetry.shutdown()
