"""The command line: every command, flag and help text."""

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from service import __version__

Arguments = argparse.Namespace
Parser = argparse.ArgumentParser
SCOPES = ("search", "index", "admin")
DEFAULT_COLLECTION = "default"
DEFAULT_K = 10
MAX_K = 1000


def build_parser() -> Parser:
    """The parser of `braid`; `command` names the module that runs."""
    parser = Parser(
        prog="braid",
        description="Hybrid retrieval over Postgres: dense and lexical search, fused.",
        epilog="Settings come from BRAID_ variables; see docs/reference/settings.md.",
    )
    parser.add_argument("--version", action="version", version=f"braid {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in (_up, _serve, _worker, _migrate, _index, _search, _keys, _reseal, _openapi):
        add(commands)
    return parser


def _command(commands: Any, name: str, summary: str, detail: str = "") -> Parser:
    description = summary[0].upper() + summary[1:] + "." + (f" {detail}" if detail else "")
    parser: Parser = commands.add_parser(name, help=summary, description=description)
    parser.set_defaults(command=name)
    return parser


def _up(commands: Any) -> None:
    parser = _command(
        commands,
        "up",
        "start everything on this machine",
        "An embedded PostgreSQL (unless BRAID_DATABASE_URL is set), the bundled embedding model, "
        "the API and the indexing worker. Ctrl-C stops it all.",
    )
    _address(parser)
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder of the database and the root key"
    )
    parser.add_argument(
        "--no-sample", action="store_true", help="do not load the sample collection"
    )


def _serve(commands: Any) -> None:
    parser = _command(
        commands,
        "serve",
        "run one server process against BRAID_DATABASE_URL",
        "The schema must be there already: see `braid migrate`.",
    )
    parser.add_argument(
        "--role",
        choices=("search", "index", "all"),
        required=True,
        help="search: the read path; index: documents, administration and the worker; all: both",
    )
    _address(parser)


def _worker(commands: Any) -> None:
    _command(
        commands,
        "worker",
        "run indexing jobs against BRAID_DATABASE_URL, without an API",
    )


def _migrate(commands: Any) -> None:
    _command(
        commands,
        "migrate",
        "bring the schema of BRAID_DATABASE_URL to this version",
        "Safe to run from several processes at once; `braid up` does it by itself.",
    )


def _index(commands: Any) -> None:
    parser = _command(
        commands,
        "index",
        "index a file or a folder",
        "JSONL and JSON arrays of documents, Markdown, plain text and source code.",
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="file or folder to read")
    _collection(parser, "collection to fill; made if it does not exist")
    parser.add_argument(
        "--language",
        metavar="NAME",
        help="text search configuration of a new collection, such as english (default: simple)",
    )


def _search(commands: Any) -> None:
    parser = _command(commands, "search", "search a collection and show what was found")
    parser.add_argument("query", metavar="QUERY", help="what to look for, in plain words")
    _collection(parser, "collection to search")
    parser.add_argument(
        "--mode", choices=("hybrid", "vector", "text"), help="legs to use (default: both)"
    )
    parser.add_argument(
        "-k", type=_count, default=DEFAULT_K, metavar="N", help="hits to show (default: 10)"
    )
    parser.add_argument(
        "--group-by", choices=("chunk", "document"), default="chunk", help="what a hit is"
    )
    parser.add_argument(
        "--filter",
        type=_json_object,
        metavar="JSON",
        help="""condition on metadata, such as '{"lang": "de"}'""",
    )
    parser.add_argument(
        "--explain", action="store_true", help="show what each leg and each word added"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def _keys(commands: Any) -> None:
    parser = _command(commands, "keys", "make, list, revoke and rotate API keys")
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    create = _action(actions, "create", "make a key and show it once")
    create.add_argument("name", metavar="NAME", help="what the key is for")
    create.add_argument(
        "--scope",
        dest="scopes",
        action="append",
        choices=SCOPES,
        help="what it may do; may be repeated (default: search)",
    )
    create.add_argument(
        "--collection",
        dest="collections",
        action="append",
        metavar="NAME",
        help="limit it to a collection; may be repeated",
    )
    create.add_argument(
        "--expires",
        type=_expiry,
        metavar="TIME",
        help="when it ends: a time such as 2030-01-31T12:00:00Z, or 90d",
    )

    listing = _action(actions, "list", "show the keys that are in force")
    listing.add_argument("--json", action="store_true", help="print them as JSON")

    revoke = _action(actions, "revoke", "end a key at once")
    revoke.add_argument("id", type=int, metavar="ID", help="number of the key")

    rotate = _action(actions, "rotate", "replace a key by a new one with the same rights")
    rotate.add_argument("id", type=int, metavar="ID", help="number of the key")
    rotate.add_argument(
        "--overlap",
        type=int,
        default=0,
        metavar="SECONDS",
        help="how long the old key goes on working (default: 0)",
    )


def _action(actions: Any, name: str, summary: str) -> Parser:
    parser = _command(actions, name, summary)
    parser.set_defaults(command="keys", action=name)
    parser.add_argument(
        "--team", metavar="NAME", help="team to act for; needs the root key (default: its own)"
    )
    return parser


def _reseal(commands: Any) -> None:
    _command(
        commands,
        "reseal",
        "seal provider secrets anew with the newest key of BRAID_SECRET_KEY",
        "Works on BRAID_DATABASE_URL. Afterwards the older keys can be taken from the list.",
    )


def _openapi(commands: Any) -> None:
    parser = _command(commands, "openapi", "print the OpenAPI description of the API")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--write", action="store_true", help="write it to openapi/openapi.json in this folder"
    )
    what.add_argument(
        "--check", action="store_true", help="fail if openapi/openapi.json is not up to date"
    )


def _address(parser: Parser) -> None:
    parser.add_argument("--host", metavar="HOST", help="address to listen on")
    parser.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        help="port to listen on (default: 8000); 0 takes a free one",
    )


def _collection(parser: Parser, summary: str) -> None:
    parser.add_argument(
        "--collection",
        default=DEFAULT_COLLECTION,
        metavar="NAME",
        help=f"{summary} (default: {DEFAULT_COLLECTION})",
    )


def _bounded(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}, not {value}")
        return value

    parse.__name__ = "whole number"
    return parse


_port = _bounded(0, 65_535)
_count = _bounded(1, MAX_K)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _expiry(text: str) -> datetime:
    """A time, or a number of days from now."""
    try:
        if text.endswith("d"):
            return datetime.now(UTC) + timedelta(days=int(text[:-1]))
        when = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time and no number of days") from error
    return when if when.tzinfo else when.replace(tzinfo=UTC)
