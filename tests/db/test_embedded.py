"""The embedded server: its life, its death, and that of the processes around it."""

import asyncio
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from support.embedded_processes import (
    eventually,
    fetch,
    is_gone,
    owner,
    postmaster,
    processes_of,
    reachable_folder,
)

from service.db import embedded
from service.db.embedded import EmbeddedPostgres
from service.db.server_account import server_account
from service.db.server_record import read_record

UNSAFE = {"fsync": "off"}
WRITE = ("CREATE TABLE kept (n int)", "INSERT INTO kept SELECT generate_series(1, 1000)")
READ = "SELECT count(*) FROM kept"

needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A folder with a cluster, made once and stopped."""
    with reachable_folder() as folder:
        server = EmbeddedPostgres(folder / "braid", settings=UNSAFE)
        server.start()
        server.stop()
        yield server.root


@pytest.fixture
def empty() -> Iterator[Path]:
    with reachable_folder() as folder:
        yield folder / "braid"


@pytest.fixture
def root(empty: Path, made: Path) -> Path:
    """A folder with a cluster of the test's own."""
    subprocess.run(["cp", "-a", made, empty], check=True)
    return empty


@pytest.fixture
def server(root: Path) -> Iterator[EmbeddedPostgres]:
    """A server of this process, in a folder of the test's own."""
    server = EmbeddedPostgres(root, settings=UNSAFE)
    server.start()
    yield server
    server.stop()


async def test_stops_and_starts_again_with_its_rows(server: EmbeddedPostgres) -> None:
    await fetch(server.dsn(), *WRITE, READ)
    pid = postmaster(server.root)
    server.stop()
    assert is_gone(pid)
    assert await fetch(server.start(), READ) == 1000
    assert not server.attached


async def test_the_owner_killed_takes_the_server_along_and_a_restart_keeps_the_rows(
    root: Path,
) -> None:
    with owner(root) as first:
        await fetch(first.report()["dsn"], *WRITE, READ)
        pid = postmaster(root)
        first.kill()
        # Not waiting for the old server is what a service manager does that restarts at once.
        second = EmbeddedPostgres(root, settings=UNSAFE)
        try:
            assert await fetch(second.start(), READ) == 1000
            assert is_gone(pid)
            assert not second.attached
        finally:
            second.stop()


@pytest.mark.parametrize("ending", ["killed", "terminated", "ended without stop"])
def test_no_process_outlives_its_owner(root: Path, ending: str) -> None:
    with owner(root, stop=False) as only:
        assert "dsn" in only.report()
        pid = postmaster(root)
        if ending != "ended without stop":
            only.process.send_signal(signal.SIGKILL if ending == "killed" else signal.SIGTERM)
        only.leave()
        eventually(lambda: is_gone(pid))
        assert not (root / "postgres/postmaster.pid").exists()


@needs_proc
def test_an_owner_killed_in_the_moment_of_launch_leaves_no_server(root: Path) -> None:
    with owner(root, die_after_launch=True) as only:
        assert only.leave() == -signal.SIGKILL
    eventually(lambda: not processes_of(root))
    with owner(root) as second:
        assert second.report()["attached"] is False


async def test_a_forked_child_neither_stops_the_server_nor_keeps_it_alive(root: Path) -> None:
    with owner(root, fork=True) as parent:
        report = parent.report()
        try:
            # The child has called stop() by now.
            assert await fetch(report["dsn"], "SELECT 1") == 1
            pid = postmaster(root)
            parent.process.kill()
            eventually(lambda: is_gone(pid))
            assert not is_gone(report["forked"])
            with owner(root) as second:
                assert second.report()["attached"] is False
        finally:
            os.kill(report["forked"], signal.SIGKILL)


async def test_a_killed_server_starts_again_with_its_rows(server: EmbeddedPostgres) -> None:
    await fetch(server.dsn(), *WRITE, READ)
    killed = postmaster(server.root)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: is_gone(killed))
    assert await fetch(server.start(), READ) == 1000
    assert postmaster(server.root) != killed


async def test_a_server_killed_under_a_busy_session_starts_again(server: EmbeddedPostgres) -> None:
    await fetch(server.dsn(), *WRITE, READ)
    endless = "SELECT count(*) FROM generate_series(1, 50000) a, generate_series(1, 50000) b"
    busy = asyncio.create_task(fetch(server.dsn(), endless))
    active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%50000%'"
    while await fetch(server.dsn(), active) < 2:
        pass
    os.kill(postmaster(server.root), signal.SIGKILL)
    eventually(lambda: is_gone(postmaster(server.root)))
    restarted = await asyncio.to_thread(server.start, timeout=20)
    assert await fetch(restarted, READ) == 1000
    with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
        await busy


@needs_proc
def test_an_owner_killed_during_initdb_leaves_nothing_that_the_next_start_minds(
    empty: Path,
) -> None:
    with owner(empty) as first:
        eventually(lambda: list(empty.glob("postgres.new.*/base")))
        first.kill()
        eventually(lambda: not processes_of(empty))
    assert not (empty / "data").exists()
    with owner(empty) as second:
        assert second.report()["attached"] is False
        assert not list(empty.glob("postgres.new.*"))


async def test_a_second_process_attaches_and_never_stops_the_server(
    server: EmbeddedPostgres,
) -> None:
    await fetch(server.dsn(), *WRITE, READ)
    with owner(server.root) as second:
        report = second.report()
        assert report["attached"] is True
        assert await fetch(report["dsn"], READ) == 1000
        assert second.leave() == 0
    assert await fetch(server.dsn(), READ) == 1000
    assert not server.attached


async def test_a_second_object_of_the_same_process_attaches_too(server: EmbeddedPostgres) -> None:
    second = EmbeddedPostgres(server.root)
    assert await fetch(second.start(), "SELECT 1") == 1
    assert second.attached
    second.stop()
    assert await fetch(server.dsn(), "SELECT 1") == 1
    assert not server.attached


def test_of_two_that_start_at_once_one_owns_and_one_attaches(empty: Path) -> None:
    with owner(empty) as one, owner(empty) as other:
        reports = [one.report(), other.report()]
        assert sorted(report["attached"] for report in reports) == [False, True]
        assert reports[0]["dsn"] == reports[1]["dsn"]


def test_the_server_outlives_the_thread_that_started_it(root: Path) -> None:
    server = EmbeddedPostgres(root, settings=UNSAFE)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        assert asyncio.run(fetch(server.dsn(), "SELECT 1")) == 1
    finally:
        server.stop()


@pytest.fixture
def foreign(root: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """A process of the server's account that has nothing to do with the server's folder."""
    kind = request.param
    account = server_account(root / "postgres")
    program = root.with_name("sleep" if kind == "other program" else "postgres")
    shutil.copy("/bin/true" if kind == "zombie" else "/bin/sleep", program)
    process = subprocess.Popen([program, "600"], **account.popen_options())
    if kind == "zombie":
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "foreign", ["zombie", "other program", "server of another folder"], indirect=True
)
async def test_a_stale_record_with_a_living_process_number_is_no_obstacle(
    server: EmbeddedPostgres, foreign: int
) -> None:
    await fetch(server.dsn(), *WRITE, READ)
    _leave_record(server, foreign)
    assert await fetch(server.start(), READ) == 1000
    assert postmaster(server.root) != foreign
    assert not server.attached


def test_a_container_that_restarts_within_a_second_writes_a_record_of_its_own(
    tmp_path: Path,
) -> None:
    text = "\n".join(["6", "/data", "1767225600", "5432", "", "", "", "ready"])
    records = []
    for _ in range(2):
        (tmp_path / "postmaster.pid").write_text(text)
        os.utime(tmp_path / "postmaster.pid", ns=(0, len(records)))
        records.append(read_record(tmp_path))
    assert all(record and record.pid == 6 and record.ready for record in records)
    assert records[0] != records[1]


async def test_one_that_was_attached_takes_over_from_an_owner_that_died(root: Path) -> None:
    follower = EmbeddedPostgres(root, settings=UNSAFE)
    with owner(root) as first:
        await fetch(first.report()["dsn"], *WRITE, READ)
        follower.start()
        assert follower.attached
    try:
        assert await fetch(follower.start(), READ) == 1000
        assert not follower.attached
    finally:
        follower.stop()


async def test_an_empty_record_is_no_obstacle(server: EmbeddedPostgres) -> None:
    server.stop()
    (server.root / "postgres/postmaster.pid").touch()
    assert await fetch(server.start(), "SELECT 1") == 1


def _leave_record(server: EmbeddedPostgres, pid: int) -> None:
    """What a killed server leaves, with `pid` for its number."""
    file = server.root / "postgres/postmaster.pid"
    left = file.read_text().splitlines()
    server.stop()
    file.write_text("\n".join([str(pid), *left[1:]]) + "\n")


async def test_a_server_that_nobody_owns_is_waited_for_and_named(
    server: EmbeddedPostgres,
) -> None:
    pid = postmaster(server.root)
    rival = EmbeddedPostgres(server.root)
    rival._lock = embedded.OwnerLock(server.root / "another lock")
    with pytest.raises(embedded.EmbeddedError, match=f"process {pid} is a server of"):
        rival.start(timeout=0.2)
    assert await fetch(server.dsn(), "SELECT 1") == 1


def test_owner_says_so_when_another_is_still_starting(root: Path) -> None:
    lock = embedded.OwnerLock(root / "postgres.lock")
    assert lock.take()
    with pytest.raises(embedded.EmbeddedError, match="another process is starting"):
        EmbeddedPostgres(root).start(timeout=0.1)
    lock.release()
