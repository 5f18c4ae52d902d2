"""`braid up`: database, schema, key, server and sample on this machine, from nothing."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import httpx
import msgspec
from rich.text import Text

from service import __version__
from service.cli.client import Api
from service.cli.console import COMPLAINT, CommandError, complain, out
from service.cli.invocation import own_command
from service.cli.parser import Arguments
from service.cli.rootkey import FILE_NAME, data_dir, ensure_root_key, ensure_secret_key
from service.cli.sample import COLLECTION, QUESTION, load_sample
from service.cli.server import free_port
from service.db.embedded import EmbeddedPostgres, find_tree
from service.db.guarded_process import GuardedProcess
from service.db.preflight import migrate_or_explain
from service.db.server_account import ServerAccount
from service.settings import Settings, load_settings

READY_SECONDS = 120.0
POLL_SECONDS = 0.1
ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on


class Place(msgspec.Struct, frozen=True):
    """Where one `braid up` runs: its folder, its address and its key."""

    folder: Path
    host: str
    port: int
    key: str
    made_key: bool
    secret_key: str

    @property
    def url(self) -> str:
        """The address to use on this machine."""
        host = "127.0.0.1" if self.host in ANY_ADDRESS else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def log(self) -> Path:
        """What the server of this run prints."""
        return self.folder / "server.log"


def run(arguments: Arguments) -> int:
    """Run everything until Ctrl-C or SIGTERM; status 0 after either."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = load_settings()
    try:
        with contextlib.ExitStack() as stack:
            try:
                _run(_place(arguments, settings), settings, stack, sample=not arguments.no_sample)
            finally:
                _ignore_signals()
    except KeyboardInterrupt:
        return 0


def _run(
    place: Place, settings: Settings, stack: contextlib.ExitStack, *, sample: bool
) -> NoReturn:
    """Start everything in order and attend to it; the stack stops it in reverse."""
    database_url = stack.enter_context(_database(settings, place.folder))
    asyncio.run(migrate_or_explain(database_url))
    server = stack.enter_context(_server(place, database_url))
    _await_ready(place, server)
    _announce(place, settings, sample=sample)
    if sample:
        threading.Thread(target=_fill_sample, args=(place,), daemon=True).start()
    while server.poll() is None:
        time.sleep(POLL_SECONDS)
    raise CommandError(f"the server ended unexpectedly: see {place.log}")


def _ignore_signals() -> None:
    # Everything is being stopped; a second Ctrl-C would only leave it half done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _place(arguments: Arguments, settings: Settings) -> Place:
    folder = arguments.data_dir.absolute() if arguments.data_dir else data_dir(settings)
    host = arguments.host or settings.host
    port = free_port(host, settings.port if arguments.port is None else arguments.port)
    given = settings.root_api_key
    key = given.get_secret_value() if given else ensure_root_key(folder)
    sealing = settings.secret_key
    secret_key = sealing.get_secret_value() if sealing else ensure_secret_key(folder)
    return Place(folder, host, port, key, made_key=given is None, secret_key=secret_key)


@contextlib.contextmanager
def _database(settings: Settings, folder: Path) -> Iterator[str]:
    """The address of the external database, or of one that runs as long as this command."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    postgres = EmbeddedPostgres(folder, tree=find_tree(settings.pg_bindir))
    address = postgres.start()
    try:
        if postgres.attached:
            raise CommandError(f"another `braid up` runs on {folder}: choose another --data-dir")
        yield address
    finally:
        postgres.stop()


@contextlib.contextmanager
def _server(place: Place, database_url: str) -> Iterator[GuardedProcess]:
    """The API and the indexing worker, in a process that ends with this one."""
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.log.exists():
        place.log.replace(place.log.with_suffix(".log.1"))
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        server = GuardedProcess(
            [sys.executable, "-m", "service.cli", "serve", "--role", "all"],
            account=ServerAccount("self", os.geteuid(), os.getegid(), switch=False),
            output=log,
            environment=_environment(place, database_url),
        )
    finally:
        os.close(log)
    try:
        yield server
    finally:
        server.stop()


def _environment(place: Place, database_url: str) -> dict[str, str]:
    return dict(os.environ) | {
        "BRAID_DATABASE_URL": database_url,
        "BRAID_ROOT_API_KEY": place.key,
        "BRAID_SECRET_KEY": place.secret_key,
        "BRAID_HOST": place.host,
        "BRAID_PORT": str(place.port),
    }


def _await_ready(place: Place, server: GuardedProcess) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(trust_env=False, timeout=READY_SECONDS) as client:
        while time.monotonic() < deadline:
            if server.poll() is not None:
                raise CommandError(f"the server did not start: {_last_words(place.log)}")
            with contextlib.suppress(httpx.HTTPError):
                if client.get(place.url + "/readyz").is_success:
                    return
            time.sleep(POLL_SECONDS)
    raise CommandError(f"the server was not ready in time: see {place.log}")


def _last_words(log: Path) -> str:
    """The server's own reason if it gave one, else the last line of its log."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line]
    reasons = [line.removeprefix(COMPLAINT) for line in said if line.startswith(COMPLAINT)]
    return f"{(reasons or said or ['no reason given'])[-1][:500]} (see {log})"


def _announce(place: Place, settings: Settings, *, sample: bool) -> None:
    braid = own_command()
    lines = [("docs", f"{place.url}/schema"), ("log", str(place.log))]
    if place.made_key:
        lines.insert(0, ("key", f"{place.key}  (kept in {place.folder / FILE_NAME})"))
    if environment := _to_export(place, settings):
        lines.append(("first", f"export {environment}"))
    if sample:
        lines.append(("try", f'{braid} search "{QUESTION}" --collection {COLLECTION}'))
        lines.append(("or", _curl(place)))
    else:
        lines.append(("try", f'{braid} index PATH && {braid} search "QUESTION"'))
    out.print(Text.assemble(("braid ", "bold"), f"{__version__} is ready at ", (place.url, "bold")))
    for name, value in lines:
        out.print(Text.assemble((f"  {name:6}", "dim"), value))
    out.print("Ctrl-C stops it")


def _to_export(place: Place, settings: Settings) -> str:
    """What the other commands have to be told to find this server."""
    wanted = []
    if place.url != settings.url:
        wanted.append(f"BRAID_URL={place.url}")
    if place.made_key and place.folder != data_dir(settings):
        wanted.append(f"BRAID_DATA_DIR={place.folder}")
    return " ".join(wanted)


def _curl(place: Place) -> str:
    key = place.key if place.made_key else "$BRAID_ROOT_API_KEY"
    return (
        f'curl -s {place.url}/v1/collections/{COLLECTION}/search -H "X-API-Key: {key}" '
        f"""-H 'Content-Type: application/json' -d '{{"query": {{"text": "{QUESTION}"}}}}'"""
    )


def _fill_sample(place: Place) -> None:
    async def fill() -> int:
        async with Api(place.url, place.key) as api:
            return await load_sample(api)

    try:
        if documents := asyncio.run(fill()):
            out.print(f"collection {COLLECTION} holds {documents} documents to try")
    except CommandError as error:
        complain(f"the sample was not loaded: {error}")
