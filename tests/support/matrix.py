"""One request an endpoint, for the test that tries each of them with every kind of key."""

from typing import Any, Literal

import msgspec

Reach = Literal["collection", "team", "own", "collections", "root"]
"""What another team's key meets: 404 for a collection or an id of a team, its own things in a
list, its own collections for any scope, 403 where only the root key may."""


class Row(msgspec.Struct, frozen=True):
    """How an endpoint is asked so that whoever may do it succeeds."""

    scope: str | None
    """None: any scope will do."""
    status: int
    reach: Reach = "collection"
    send: dict[str, Any] = {}
    last: int = 0
    """Those that end what others need come later."""
    whole_team: bool = False
    """A key that is limited to some collections may not."""


DOCUMENT = {"doc_id": "new", "chunks": [{"id": "x", "text": "new words", "vector": [1, 0, 0]}]}
SEARCH = {"query": {"text": "stands"}, "mode": "text"}
DOCUMENT_PATH = "/v1/collections/{name}/documents/{doc_id}"
JOB_PATH = "/v1/collections/{name}/jobs/{job_id}"

# 409: the guard and the look-up are passed, and the state forbids it.
ROWS: dict[tuple[str, str], Row] = {
    ("GET", "/v1/collections"): Row(None, 200, "collections"),
    ("POST", "/v1/collections"): Row(
        "admin",
        201,
        "own",
        {"json": {"name": "fresh", "embedding": {"provider": "none"}}},
        whole_team=True,
    ),
    ("GET", "/v1/collections/{name}"): Row(None, 200),
    ("PATCH", "/v1/collections/{name}"): Row("admin", 200, send={"json": {"search": {}}}),
    ("DELETE", "/v1/collections/{name}"): Row("admin", 204, last=3),
    ("GET", "/v1/collections/{name}/health"): Row("admin", 200),
    ("POST", "/v1/collections/{name}/reindex"): Row(
        "admin", 200, send={"json": {"language": "english", "plan_only": True}}
    ),
    ("POST", "/v1/collections/{name}/rollback"): Row("admin", 409),
    ("POST", "/v1/collections/{name}/index"): Row("admin", 202),
    ("DELETE", "/v1/collections/{name}/index"): Row("admin", 202, last=1),
    ("GET", "/v1/collections/{name}/documents"): Row("search", 200),
    ("POST", "/v1/collections/{name}/documents"): Row(
        "index", 202, send={"json": {"documents": [DOCUMENT]}}
    ),
    ("POST", "/v1/collections/{name}/files"): Row(
        "index", 202, send={"files": {"file": ("a.txt", b"plain words", "text/plain")}}
    ),
    ("GET", DOCUMENT_PATH): Row("search", 200),
    ("PATCH", DOCUMENT_PATH): Row("index", 200, send={"json": {"metadata": {"a": 1}}}),
    ("DELETE", DOCUMENT_PATH): Row("index", 200, last=2),
    ("GET", "/v1/collections/{name}/jobs"): Row("index", 200),
    ("GET", JOB_PATH): Row("index", 200),
    ("POST", JOB_PATH + "/pause"): Row("admin", 409),
    ("POST", JOB_PATH + "/resume"): Row("admin", 409),
    ("POST", JOB_PATH + "/cancel"): Row("index", 409),
    ("POST", "/v1/collections/{name}/search"): Row("search", 200, send={"json": SEARCH}),
    ("POST", "/v1/collections/{name}/search/diagnose"): Row(
        "search", 200, send={"json": {**SEARCH, "doc_id": "d"}}
    ),
    ("POST", "/v1/search"): Row(
        "search", 200, send={"json": {**SEARCH, "collections": ["{name}"]}}
    ),
    ("GET", "/v1/keys"): Row("admin", 200, "own", whole_team=True),
    ("POST", "/v1/keys"): Row(
        "admin",
        201,
        "own",
        {"json": {"name": "another key", "scopes": ["search"]}},
        whole_team=True,
    ),
    ("DELETE", "/v1/keys/{key_id}"): Row("admin", 204, "team", last=2, whole_team=True),
    ("POST", "/v1/keys/{key_id}/rotate"): Row(
        "admin", 201, "team", {"json": {"overlap_s": 60}}, last=1, whole_team=True
    ),
    ("GET", "/v1/providers"): Row("admin", 200, "own", whole_team=True),
    ("POST", "/v1/providers"): Row(
        "admin", 201, "own", {"json": {"name": "fresh", "kind": "local"}}, whole_team=True
    ),
    ("DELETE", "/v1/providers/{provider_id}"): Row("admin", 204, "team", last=2, whole_team=True),
    ("POST", "/v1/providers/{provider_id}/check"): Row("admin", 200, "team", whole_team=True),
    ("GET", "/v1/audit"): Row("admin", 200, "own", whole_team=True),
    ("GET", "/v1/teams"): Row("root", 200, "root"),
    ("POST", "/v1/teams"): Row("root", 201, "root", {"json": {"name": "third"}}),
    ("GET", "/v1/flags"): Row("root", 200, "root"),
    ("PUT", "/v1/flags/{name}"): Row("root", 200, "root", {"json": {}}),
}
