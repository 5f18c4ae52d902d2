"""Runs the stories in the YAML files beside this one: each step is a request and its answer.

A step names `METHOD /path`, a `body` to send, and what to expect: the `status`, and in `answer`
the parts of the body that matter. An object may hold more than is expected, a list may not.
`keep` remembers parts of an answer by their path for `${name}` in later steps.
"""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.api import ROOT, client_of, serving

STORIES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted(Path(__file__).parent.glob("*.yaml"))
}


@pytest.mark.parametrize("story", STORIES)
async def test_story(story: str, dsn: str) -> None:
    async with serving(dsn) as app, client_of(app, {}) as client:
        kept: dict[str, Any] = {}
        for number, step in enumerate(STORIES[story], 1):
            await _take(client, step, kept, f"{story}, step {number}: {step['request']}")


async def _take(
    client: httpx.AsyncClient, step: dict[str, Any], kept: dict[str, Any], where: str
) -> None:
    method, path = _filled(step["request"], kept).split(" ", 1)
    response = await client.request(
        method,
        path,
        json=_filled(step.get("body"), kept),
        headers=_filled(step.get("headers", ROOT), kept),
    )
    assert response.status_code == step["status"], f"{where}: {response.text}"
    body = response.json() if response.content else None
    _compare(_filled(step.get("answer", {}), kept), body or {}, where)
    for name, at in step.get("keep", {}).items():
        kept[name] = _at(body, at)


def _filled(value: Any, kept: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, kept) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, kept) for one in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", lambda match: str(kept[match[1]]), value)
    return value


def _at(body: Any, path: str) -> Any:
    for part in path.split("."):
        body = body[int(part)] if isinstance(body, list) else body[part]
    return body


def _compare(expected: Any, found: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(found, dict), f"{where} is {found!r}"
        for key, value in expected.items():
            assert key in found, f"{where} has no {key}: {found}"
            _compare(value, found[key], f"{where}, {key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), f"{where} is {found!r}"
        assert len(found) == len(expected), f"{where} is {found}"
        for index, value in enumerate(expected):
            _compare(value, found[index], f"{where}, {index}")
    else:
        assert found == expected, where
