"""The command line: what it takes, what it refuses, and how a command ends."""

from datetime import UTC, datetime, timedelta

import pytest

from service import __version__
from service.cli import main
from service.cli.parser import build_parser


def parse(*words: str):
    return build_parser().parse_args(words)


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"braid {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["keys"],
        ["search"],
        ["serve"],
        ["serve", "--role", "both"],
        ["up", "--port", "70000"],
        ["up", "--port", "-1"],
        ["up", "--port", "http"],
        ["search", "q", "-k", "0"],
        ["search", "q", "-k", "1001"],
        ["search", "q", "--filter", "{"],
        ["search", "q", "--filter", "[]"],
        ["search", "q", "--filter", '{"a": NaN}'],
        ["search", "q", "--filter", '{"a":' * 5000],
        ["search", "q", "--mode", "fuzzy"],
        ["keys", "create", "n", "--scope", "root"],
        ["keys", "create", "n", "--expires", "soon"],
        ["keys", "create", "n", "--expires", "99999999999d"],
        ["openapi", "--write", "--check"],
    ],
)
def test_wrong_usage_is_status_2_and_says_so(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "braid" in capsys.readouterr().err


def test_a_search_is_hybrid_over_chunks_of_the_default_collection_unless_told_otherwise():
    arguments = parse("search", "how do I")
    assert (arguments.collection, arguments.mode, arguments.k) == ("default", None, 10)
    assert (arguments.group_by, arguments.filter, arguments.json) == ("chunk", None, False)


def test_a_filter_is_parsed_json():
    assert parse("search", "q", "--filter", '{"lang": ["de", "fr"]}').filter == {
        "lang": ["de", "fr"]
    }


def test_a_query_may_begin_with_a_dash_after_the_separator():
    assert parse("search", "--", "-v").query == "-v"


def test_an_expiry_is_a_time_or_a_number_of_days():
    exact = parse("keys", "create", "n", "--expires", "2030-01-31T12:00:00Z").expires
    assert exact == datetime(2030, 1, 31, 12, tzinfo=UTC)
    naive = parse("keys", "create", "n", "--expires", "2030-01-31").expires
    assert naive == datetime(2030, 1, 31, tzinfo=UTC)
    days = parse("keys", "create", "n", "--expires", "90d").expires
    assert timedelta(days=89, hours=23) < days - datetime.now(UTC) <= timedelta(days=90)


def test_scopes_and_collections_of_a_key_may_be_repeated():
    arguments = parse(
        "keys", "create", "n", "--scope", "search", "--scope", "index", "--collection", "a"
    )
    assert arguments.scopes == ["search", "index"]
    assert arguments.collections == ["a"]


def test_a_wrong_setting_is_one_line_and_status_1(monkeypatch, capsys):
    monkeypatch.setenv("BRAID_PROT", "8000")
    assert main(["migrate"]) == 1
    assert capsys.readouterr().err == "braid: unknown setting BRAID_PROT\n"


def test_a_missing_database_is_one_line_and_status_1(monkeypatch, capsys):
    monkeypatch.delenv("BRAID_DATABASE_URL", raising=False)
    for words in (["migrate"], ["serve", "--role", "all"], ["worker"]):
        assert main(words) == 1
        said = capsys.readouterr().err
        assert said.startswith("braid: BRAID_DATABASE_URL is not set")
        assert said.count("\n") == 1


def test_a_path_that_does_not_exist_is_one_line_and_status_1(capsys):
    assert main(["index", "/no/such/path"]) == 1
    assert capsys.readouterr().err == "braid: /no/such/path does not exist\n"
