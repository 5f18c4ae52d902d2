"""Composition root: which routes a process serves, and what it opens and closes for them."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Literal

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, Reference, SecurityScheme
from litestar.types import ControllerRouterHandler

from service import __version__
from service.api import (
    audit_log,
    collection_health,
    collection_settings,
    collections,
    diagnose,
    documents,
    files,
    flags,
    health,
    jobs,
    keys,
    metrics,
    providers,
    records,
    reindex,
    schema_page,
    search,
    search_many,
    teams,
    vector_index,
)
from service.api.access import provide_collection, provide_principal
from service.api.access_cache import AccessCache
from service.api.admission import Gate
from service.api.attendance import Attended
from service.api.deadline import Deadline
from service.api.drain import Drained
from service.api.head import Headed
from service.api.languages import Languages
from service.api.leaving import Leaving
from service.api.observe import Observed
from service.api.problems import EXCEPTION_HANDLERS, log_bug
from service.api.rate import Rates
from service.api.refusal import Refused
from service.api.services import ProviderServices, Services, provide_services
from service.api.strict import MAX_BODY_BYTES, StrictRequest, check_parameters
from service.db.changes import Changes
from service.db.credentials import Credentials
from service.db.flags import Flags
from service.db.migrate import newest_revision
from service.db.partitions import drop_orphan_partitions
from service.db.pool import Database, open_database
from service.db.replicas import Replicas, parse_addresses
from service.errors import ConfigurationError, ProviderError
from service.indexing.conversion import Limits
from service.indexing.worker import Worker
from service.metrics import observing
from service.process import observe_process
from service.providers.addresses import parse_allowed
from service.providers.contextualizers import Contextualizers
from service.providers.embedders import Embedders
from service.providers.measured import Prices
from service.providers.outbound import Accounts, Outbound
from service.providers.registry import EmbedderOptions
from service.providers.rerankers import LocalRerankers, Rerankers
from service.sealing import Sealer, parse_keys
from service.search.legs import SearchServices
from service.search.lexical import CorpusCache
from service.search.packed import PackedIndex
from service.search.statistics import StatisticsCache
from service.search.warm import warm_up
from service.settings import Settings, load_settings
from service.telemetry import configure_telemetry, log

Role = Literal["search", "index", "all"]
MakeEmbedders = Callable[[Settings, Accounts], Embedders]

READ: Sequence[ControllerRouterHandler] = (
    collections.list_collections,
    collections.get_collection,
    collection_health.get_health,
    records.list_documents,
    records.get_document,
)
SEARCH: Sequence[ControllerRouterHandler] = (
    search.search,
    search_many.search_many,
    diagnose.diagnose_search,
)
WRITE: Sequence[ControllerRouterHandler] = (
    collection_settings.create_collection,
    collection_settings.change_collection,
    collections.delete_collection,
    documents.post_documents,
    files.post_files,
    documents.patch_document,
    documents.delete_document,
    reindex.reindex,
    reindex.rollback,
    reindex.pause_job,
    reindex.resume_job,
    jobs.list_jobs,
    jobs.get_job,
    jobs.cancel_job,
    keys.create_key,
    keys.list_keys,
    keys.revoke_key,
    keys.rotate_key,
    providers.create_provider,
    providers.list_providers,
    providers.delete_provider,
    providers.check_provider,
    teams.create_team,
    teams.list_teams,
    audit_log.list_audit,
    flags.put_flag,
    flags.list_flags,
    vector_index.build_index,
    vector_index.drop_index,
)
ROUTES: dict[Role, Sequence[ControllerRouterHandler]] = {
    "search": [*READ, *SEARCH],
    "index": [*READ, *WRITE],
    "all": [*READ, *SEARCH, *WRITE],
}
PUBLIC: Sequence[ControllerRouterHandler] = (
    health.livez,
    health.healthz,
    health.readyz,
    metrics.metrics,
)
PAGES: Sequence[ControllerRouterHandler] = (
    schema_page.schema_page,
    schema_page.schema_document,
    schema_page.schema_asset,
)


def create_search_app() -> Litestar:
    """The search API, with settings from the environment."""
    return _from_environment("search")


def create_indexing_app() -> Litestar:
    """The indexing API and its worker, with settings from the environment."""
    return _from_environment("index")


def create_app() -> Litestar:
    """Both in one process, with settings from the environment."""
    return _from_environment("all")


def _from_environment(role: Role) -> Litestar:
    settings = load_settings()
    telemetry = configure_telemetry(settings, role)
    app = create_app_for(role, settings)
    app.on_shutdown.append(telemetry.shutdown)
    return app


def local_embedders(settings: Settings, accounts: Accounts | None = None) -> Embedders:
    """The embedders that are installed, and those of the accounts."""
    options = EmbedderOptions(document_threads=settings.embedding_threads)
    return Embedders(options, accounts=accounts)


def provider_services(
    settings: Settings, database: Database, changes: Changes | None = None
) -> ProviderServices:
    """What it takes to call registered providers; raises `ConfigurationError`."""
    given = settings.secret_key
    sealer = Sealer(parse_keys(given.get_secret_value() if given else ""))
    outbound = Outbound(
        parse_allowed(settings.allowed_base_urls),
        calls_per_team=settings.provider_calls_per_team,
        prices=Prices(settings.token_prices),
    )
    return ProviderServices(sealer, Credentials(database, sealer, changes), outbound)


def create_app_for(
    role: Role, settings: Settings, make_embedders: MakeEmbedders = local_embedders
) -> Litestar:
    """An app of one role; nothing is opened before its lifespan begins."""
    if settings.database_url is None:
        raise ConfigurationError("BRAID_DATABASE_URL is not set")
    if role != "search":
        worker_url(settings)

    leaving = threading.Event()

    @contextlib.asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with _running(role, settings, make_embedders) as services:
            app.state.services = services
            yield

    app = Litestar(
        route_handlers=[*_routers(role), *PAGES],
        lifespan=[lifespan],
        middleware=[Deadline],
        request_class=StrictRequest,
        request_max_body_size=MAX_BODY_BYTES,
        exception_handlers=EXCEPTION_HANDLERS,
        dependencies={"services": Provide(provide_services)},
        state=State({"openapi": lambda: openapi(role), "leaving": leaving}),
        openapi_config=None,
        logging_config=None,
    )
    observed = Observed(Drained(Attended(Headed(app.asgi_handler))))
    app.asgi_handler = Leaving(Refused(observed, app), leaving)
    return app


def openapi(role: Role = "all") -> dict[str, Any]:
    """The OpenAPI document of a role; needs no settings and opens nothing."""
    schemes: dict[str, SecurityScheme | Reference] = {
        "ApiKey": SecurityScheme(type="apiKey", name="X-API-Key", security_scheme_in="header"),
        "Bearer": SecurityScheme(type="http", scheme="bearer"),
    }
    config = OpenAPIConfig(
        title="Braid",
        version=__version__,
        summary="Hybrid retrieval over Postgres",
        components=Components(security_schemes=schemes),
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, _method, _path: handler.handler_name,
    )
    described = Litestar(
        route_handlers=_routers(role),
        dependencies={"services": Provide(provide_services)},
        openapi_config=config,
        logging_config=None,
    )
    return schema_page.openapi_document(described)


def _routers(role: Role) -> list[ControllerRouterHandler]:
    v1 = Router(
        "/v1",
        route_handlers=ROUTES[role],
        before_request=check_parameters,
        dependencies={
            "principal": Provide(provide_principal),
            "collection": Provide(provide_collection),
        },
        security=[{"ApiKey": []}, {"Bearer": []}],
    )
    return [v1, *PUBLIC]


@contextlib.asynccontextmanager
async def _running(
    role: Role, settings: Settings, make_embedders: MakeEmbedders
) -> AsyncIterator[Services]:
    """Open everything in order, close it in reverse."""
    async with contextlib.AsyncExitStack() as stack:
        database = await _open_database(settings)
        stack.push_async_callback(database.close)
        direct = direct_url(settings)
        changes = Changes(direct or "")
        outside = provider_services(settings, database, changes)
        stack.push_async_callback(outside.outbound.close)
        embedders = make_embedders(settings, outside.accounts)
        stack.push_async_callback(embedders.close)
        local_rerankers = LocalRerankers(settings.reranker_dir)
        stack.push_async_callback(local_rerankers.close)
        rerankers = Rerankers(outside.accounts, local_rerankers)
        access = AccessCache(changes)
        known_flags = Flags(database, changes)
        await known_flags.refresh()
        services = _services(
            settings,
            database,
            outside,
            embedders=embedders,
            rerankers=rerankers,
            access=access,
            known_flags=known_flags,
        )
        changes.subscribe_to_history(services.search.corpus.forget)
        if direct is not None:
            await stack.enter_async_context(background("changes", changes.listen()))
        await stack.enter_async_context(background("flags", known_flags.watch()))
        # Loading a model holds up everything else in the process: better before it is ready.
        await _warm(role, outside.outbound, embedders)
        if services.search.replicas is not None:
            stack.enter_context(observing(services.search.replicas.observe))
            watching = services.search.replicas.watch()
            await stack.enter_async_context(background("replicas", watching))
        if role != "index":
            warming = warm_up(database, services.search.corpus)
            await stack.enter_async_context(background("lexical warm-up", warming))
        if role != "search":
            await stack.enter_async_context(background("sweep", _sweep(database)))
            worker = _worker(services)
            await stack.enter_async_context(background("worker", worker.run(), services.stopped))
        gauges = (database.observe, services.gate.observe, rerankers.observe, observe_process)
        stack.enter_context(observing(*gauges))
        log.info("started", role=role, version=__version__)
        yield services


async def _open_database(settings: Settings) -> Database:
    return await open_database(
        _database_url(settings),
        size=settings.db_pool_size,
        pgbouncer=settings.db_pgbouncer,
    )


def direct_url(settings: Settings) -> str | None:
    """Where sessions belong to whoever opened them; None when every address is a pooler's."""
    if settings.database_direct_url is not None:
        return settings.database_direct_url.get_secret_value()
    return None if settings.db_pgbouncer else _database_url(settings)


def _connections(settings: Settings) -> int:
    """Statements that can search at the same time, on all servers that do."""
    urls = settings.database_read_urls
    servers = len(parse_addresses(urls.get_secret_value())) if urls else 1
    return settings.db_pool_size * max(1, servers)


def _team_share(settings: Settings) -> int | None:
    """Searches of a team at once while others search; None for an equal part of the places."""
    if settings.team_concurrent_searches or settings.max_concurrent_searches:
        return settings.team_concurrent_searches
    # More than the cores can run only make the neighbours wait.
    return max(1, min(os.cpu_count() or 1, _connections(settings)) // 2)


def worker_url(settings: Settings) -> str:
    """Where a worker takes its place at the queue; raises `ConfigurationError`."""
    direct = direct_url(settings)
    if direct is None:
        raise ConfigurationError(
            "a worker listens, which PgBouncer in transaction mode cannot do: "
            "set BRAID_DATABASE_DIRECT_URL"
        )
    return direct


def _replicas(settings: Settings) -> Replicas | None:
    if settings.database_read_urls is None:
        return None
    return Replicas(
        direct_url(settings) or _database_url(settings),
        parse_addresses(settings.database_read_urls.get_secret_value()),
        size=settings.db_pool_size,
        max_lag=settings.replica_max_lag_seconds,
        pgbouncer=settings.db_pgbouncer,
    )


def _database_url(settings: Settings) -> str:
    assert settings.database_url is not None
    return settings.database_url.get_secret_value()


def _services(
    settings: Settings,
    database: Database,
    outside: ProviderServices,
    *,
    embedders: Embedders,
    rerankers: Rerankers,
    access: AccessCache,
    known_flags: Flags,
) -> Services:
    return Services(
        settings=settings,
        database=database,
        access=access,
        flags=known_flags,
        providers=outside,
        embedders=embedders,
        search=SearchServices(
            database,
            embedders,
            CorpusCache(StatisticsCache(), PackedIndex()),
            rerankers,
            replicas=_replicas(settings),
            flags=known_flags,
        ),
        gate=Gate(
            settings.max_concurrent_searches or _connections(settings),
            _team_share(settings),
        ),
        rates=Rates(settings.team_requests_per_second),
        languages=Languages(database),
        schema_revision=newest_revision(),
        stopped=[],
    )


def _worker(services: Services) -> Worker:
    settings = services.settings
    return Worker(
        services.database,
        worker_url(settings),
        services.embedders,
        contextualizers=Contextualizers(services.providers.accounts),
        headers_allowed=services.flags.headers_allowed,
        concurrency=settings.worker_concurrency,
        index_memory_mb=settings.index_memory_mb,
        keep_seconds=settings.rollback_hours * 3600,
        audit_days=settings.audit_days,
        keep_jobs_seconds=settings.job_retention_days * 86_400,
        conversion=Limits(settings.file_memory_mb, settings.file_seconds, settings.file_pages),
    )


@contextlib.asynccontextmanager
async def background(
    name: str, work: Coroutine[Any, Any, None], stopped: list[str] | None = None
) -> AsyncIterator[None]:
    """Run something beside the requests and end it with them; its name is `stopped` on failure."""

    async def run() -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - logged, and readiness tells
            log_bug("background work failed", error, work=name)
            if stopped is not None:
                stopped.append(name)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _warm(role: Role, outbound: Outbound, embedders: Embedders) -> None:
    await outbound.open()
    try:
        await embedders.warm(documents=role != "search", queries=role != "index")
    except ProviderError as error:
        log.warning("the local embedder is not ready", reason=str(error))


async def _sweep(database: Database) -> None:
    """Drop the tables that deletions had to leave because they were in use."""
    await drop_orphan_partitions(database)
