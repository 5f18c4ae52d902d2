"""Everything that is measured; `docs/reference/metrics.md` says what each is for."""

from service.metrics import SLOW, Counter, Gauge, Histogram

INFO = Gauge("braid.info", "", "Always 1: version and role of the process", ("version", "role"))

HTTP_DURATION = Histogram(
    "http.server.request.duration",
    "Time until a request was answered",
    ("http.request.method", "http.route", "http.response.status_code"),
)
HTTP_ACTIVE = Gauge("http.server.active_requests", "", "Requests in progress")

SEARCH_DURATION = Histogram(
    "braid.search.duration", "Time of an admitted search", ("mode", "outcome")
)
SEARCH_STAGE_DURATION = Histogram(
    "braid.search.stage.duration",
    "Time that a search spent in a stage",
    ("stage", "mode", "outcome"),
)
SEARCH_DEGRADED = Counter(
    "braid.search.degraded", "", "Stages left out of an answer", ("stage", "reason")
)
SEARCH_PATHS = Counter(
    "braid.search.paths", "", "Ways in which the legs found their candidates", ("leg", "path")
)
SEARCHES = Gauge("braid.search.active", "", "Searches by admission state", ("state",))
SEARCH_LIMIT = Gauge("braid.search.limit", "", "Searches that are admitted at the same time")

POOL_CONNECTIONS = Gauge(
    "braid.db.pool.connections", "", "Database connections by pool and state", ("pool", "state")
)
POOL_LIMIT = Gauge("braid.db.pool.limit", "", "Most connections of a pool", ("pool",))
POOL_WAITING = Gauge("braid.db.pool.waiting", "", "Callers waiting for a connection", ("pool",))
POOL_WAIT = Histogram("braid.db.pool.wait", "Time until a connection was there", ("pool",))

REPLICAS = Gauge("braid.db.replicas", "", "Streaming replicas that searches may use", ("state",))

CACHE_REQUESTS = Counter(
    "braid.cache.requests", "", "Look-ups in caches of the process", ("cache", "outcome")
)

INDEXING_STAGE_DURATION = Histogram(
    "braid.indexing.stage.duration", "Time of a stage of a batch", ("stage", "outcome"), bounds=SLOW
)
INDEXING_DOCUMENTS = Counter(
    "braid.indexing.documents", "", "Documents that indexing ended with", ("outcome",)
)
INDEXING_RECORDS = Counter("braid.indexing.records", "", "Chunks and summaries written")
JOB_RUNS = Histogram(
    "braid.jobs.run.duration", "Time of a turn at a job", ("kind", "outcome"), bounds=SLOW
)
JOBS_UNFINISHED = Gauge(
    "braid.jobs.unfinished", "", "Jobs that are not finished", ("kind", "status")
)
JOBS_OLDEST = Gauge("braid.jobs.oldest.age", "s", "Age of the oldest job to be begun", ("kind",))
DOCUMENTS_WAITING = Gauge("braid.documents.waiting", "", "Documents accepted and not yet indexed")

PROVIDER_DURATION = Histogram(
    "braid.provider.call.duration",
    "Time of a call to a provider",
    ("provider", "purpose", "outcome"),
    bounds=SLOW,
)
PROVIDER_TOKENS = Counter(
    "braid.provider.tokens", "", "Tokens that providers counted", ("provider", "type")
)
PROVIDER_COST = Counter(
    "braid.provider.cost.usd", "", "Cost of these tokens by the operator's prices", ("provider",)
)
CIRCUIT_CHANGES = Counter(
    "braid.provider.circuit.changes", "", "Changes of circuit breakers", ("provider", "state")
)
CIRCUITS = Gauge(
    "braid.provider.circuits", "", "Circuit breakers that are not closed", ("provider", "state")
)

PROCESS_CPU = Counter("process.cpu.time", "s", "Processor time of the process")
PROCESS_MEMORY = Gauge("process.memory.usage", "By", "Resident memory of the process")
PROCESS_FILES = Gauge("process.open_file_descriptors", "", "Open files and sockets")
