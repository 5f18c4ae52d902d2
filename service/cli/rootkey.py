"""The keys that `braid up` makes once and keeps in its data directory."""

import os
from pathlib import Path

from service.cli.console import CommandError
from service.db.embedded import default_data_dir
from service.security import new_key
from service.settings import Settings

FILE_NAME = "root-key"
SECRET_FILE_NAME = "secret-key"  # noqa: S105 - the name of a file


def data_dir(settings: Settings) -> Path:
    """Where `braid up` keeps its data."""
    return (settings.data_dir or default_data_dir()).expanduser().absolute()


def read_root_key(folder: Path) -> str | None:
    """The key kept in `folder`; None if there is none or it is not ours to read."""
    try:
        return (folder / FILE_NAME).read_text().strip() or None
    except OSError:
        return None


def ensure_root_key(folder: Path) -> str:
    """The root key kept in `folder`, made if there is none; readable by this account only."""
    return _ensure(folder, FILE_NAME)


def ensure_secret_key(folder: Path) -> str:
    """The same for the key that provider secrets are sealed with."""
    return _ensure(folder, SECRET_FILE_NAME)


def _ensure(folder: Path, name: str) -> str:
    path = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and (kept := path.read_text().strip()):
            return kept
        key = new_key()
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(key + "\n")
        fresh.replace(path)
    except OSError as error:
        raise CommandError(f"cannot keep a key in {path}: {error.strerror}") from error
    return key
