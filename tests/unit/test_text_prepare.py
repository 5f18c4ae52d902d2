# ruff: noqa: RUF001 - the characters are meant
"""What a text and a query share: the same words, the same names, the same n-grams."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text import Analyzer, Prepared, prepare

STOP_WORDS = "a an and be i in is it not of or s t the to who don"
ENGLISH = Analyzer("language", "english", frozenset(STOP_WORDS.split()))
SIMPLE = Analyzer("simple", "simple")
TRIGRAM = Analyzer("trigram", "simple")
ANALYZERS = (ENGLISH, SIMPLE, TRIGRAM)


def lexemes(prepared: Prepared) -> set[str]:
    return set(prepared.words.split()) | set(prepared.exact)


def shared(document: str, query: str) -> set[str]:
    return lexemes(prepare(document, ENGLISH)) & lexemes(prepare(query, ENGLISH))


@pytest.mark.parametrize(
    ("document", "query", "lexeme"),
    [
        ("error E-4012 raised", "e-4012", "e-4012"),
        ("error E-4012 raised", "E4012", "e4012"),
        ("see CVE-2024-1234.", "cve-2024-1234", "cve-2024-1234"),
        ("ORA-00942: table", "00942", "00942"),
        ("read auth-guide.md now", "auth-guide.md", "auth-guide.md"),
        ("read auth-guide.md now", "auth guide", "auth"),
        ("call getUserById(7)", "get user by id", "user"),
        ("call getUserById(7)", "getuserbyid", "getuserbyid"),
        ("get_user_by_id", "getUserById", "user"),
        ("an HTTPServer", "http server", "http"),
        ("parseHTML5Doc", "html doc", "html"),
        ("snake_case", "snake case", "snake"),
        ("use foo_bar() here", "foo_bar", "foo_bar"),
        ("kebab-case", "kebab case", "kebab"),
        ("an e-mail", "email", "email"),
        ("Wi-Fi", "wifi", "wifi"),
        ("release v2.5.1", "2.5.1", "2.5.1"),
        ("release 2.5.1", "v2.5.1", "2.5.1"),
        ("release 2.5.1-rc1", "2.5.1", "2.5.1"),
        ("release 2.5.1", "2.5", "2.5"),
        ("use jdk-17.0.2+8", "17.0.2", "17.0.2"),
        ("log4j-core-2.17.1.jar", "log4j 2.17.1", "2.17.1"),
        ("log4j-core-2.17.1.jar", "2.17", "2.17"),
        ("openssl_3.0.13", "3.0.13", "3.0.13"),
        ("libssl.so.1.1.1", "1.1.1", "1.1.1"),
        ("python3.11", "Python 3.11", "3.11"),
        ("Python 3.11", "python3.11", "3.11"),
        ("go1.21", "go 1.21", "1.21"),
        ("at 2024-01-15T10:30:00Z failed", "2024-01-15", "2024-01-15"),
        ("at 2024-01-15T10:30:00Z failed", "2024-01-15T10:30:00Z", "10:30:00z"),
        ("in C++17", "C++", "c++"),
        ("(C#)", "c#", "c#"),
        ("Learn F#.", "f#", "f#"),
        ("ASP.NET", ".NET", "net"),
        ("the .NET runtime", ".net", ".net"),
        ("node.js", "node", "node"),
        ("node.js", "nodejs", "nodejs"),
        ("/etc/nginx/nginx.conf", "nginx.conf", "nginx.conf"),
        ("/etc/nginx/nginx.conf:", "/etc/nginx/nginx.conf", "/etc/nginx/nginx.conf"),
        (r"C:\Users\x\app.ini", "app.ini", "app.ini"),
        (
            "<https://example.com:8080/a/b.html?x=1>",
            "https://example.com:8080/a/b.html?x=1",
            "https://example.com:8080/a/b.html?x=1",
        ),
        ("https://docs.example.com/a/b.html", "docs.example.com", "docs.example.com"),
        ("https://docs.example.com/a/b.html", "b.html", "b.html"),
        ("John <j@example.org>", "j@example.org", "j@example.org"),
        ("lodash:4.17.21", "4.17.21", "4.17.21"),
        ("lodash:4.17.21", "lodash", "lodash"),
        ("@scope/package", "scope package", "package"),
        ("@scope/package,", "@scope/package", "@scope/package"),
        ("DS-7604NI-E1/4P/A", "DS-7604NI", "7604ni"),
        ("DS-7604NI-E1/4P/A", "ds-7604ni-e1/4p/a", "ds-7604ni-e1/4p/a"),
        ("pass --no-sample", "--no-sample", "--no-sample"),
        ("pods -n kube-system", "-n", "-n"),
        ("std::vector<int>", "std::vector", "std::vector"),
        ("std::vector<int>", "vector int", "int"),
        ("a->b", "a->b", "a->b"),
        ("at 192.168.0.1:", "192.168.0.1", "192.168.0.1"),
        ("at fe80::1", "fe80::1", "fe80::1"),
        ("on 2024-01-15", "2024-01-15", "2024-01-15"),
        ("id 3e6be9de-8139-11d1-9106-a43f08d823a6", "3e6be9de", "3e6be9de"),
        ("$1,234.50", "1234.50", "1234.50"),
        ("1.234,50 €", "1,234.50", "1234.50"),
        ("1'234.50 CHF", "1234.50", "1234.50"),
        ("10,000 rows", "10000", "10000"),
        ("about 50%", "50 percent", "50"),
        ("1e-3", "1e-3", "1e-3"),
        ("AT&T", "at&t", "at&t"),
        ("the U.S.A. and", "usa", "usa"),
        ("trans-\nport", "transport", "transport"),
        ("well-\nknown", "well-known", "known"),
        ("soft\u00adware", "software", "software"),
        ("O’Neill", "O'Neill", "neill"),
        ("l’été", "l'ete", "ete"),
        ("café", "cafe", "cafe"),
        ("cafe", "CAFÉ", "cafe"),
        ("Straße", "STRASSE", "strasse"),
        ("İstanbul", "istanbul", "istanbul"),
        ("ISPARTA", "ısparta", "isparta"),
        ("МОСКВА", "москва", "москва"),
        ("ｃａｆé", "cafe", "cafe"),
        ("iPhone手机", "iphone 手机", "手机"),
        ("shipped 🎉", "🎉", "🎉"),
    ],
)
def test_a_query_shares_this_lexeme_with_the_document(
    document: str, query: str, lexeme: str
) -> None:
    assert lexeme in shared(document, query)


@pytest.mark.parametrize(
    ("document", "query"),
    [
        ("C++", "C#"),
        ("C++", "C"),
        ("C#", "C"),
        ("F#", "C#"),
        ("12.5", "1.25"),
        ("a-12.5", "2.5"),
        ("jdk-17.0.2", "7.0.2"),
        ("1,234", "234"),
        ("2.5.1", "25.1"),
        ("йод", "иод"),
    ],
)
def test_these_have_nothing_in_common(document: str, query: str) -> None:
    assert not shared(document, query)


def test_whole_identifiers_count_double_and_are_named() -> None:
    prepared = prepare("E-4012 and foo_bar, foo_bar; getUserById c2065 2010-11", ENGLISH)
    assert prepared.exact == {"e-4012": 2, "foo_bar": 4, "2010-11": 2}
    assert prepared.identifiers == ("e-4012", "foo_bar", "getuserbyid", "c2065")


def test_hyphenated_words_are_words_not_identifiers() -> None:
    prepared = prepare("state-of-the-art wi-fi", ENGLISH)
    assert prepared.exact == {}
    assert prepared.identifiers == ()
    assert prepared.words == "state of the art wi fi wifi"


def test_the_phrase_keeps_reading_order_and_variants_follow_it() -> None:
    prepared = prepare("call getUserById of node.js today", ENGLISH)
    assert prepared.phrase == "call getuserbyid of node js today"
    assert prepared.words == f"{prepared.phrase} get user by id nodejs"


def test_stop_words_keep_the_accents_by_which_the_server_knows_them() -> None:
    german = Analyzer("language", "german", frozenset({"für", "über"}))
    assert prepare("Für Bücher über Käse", german).words == "für bucher über kase"


def test_vietnamese_words_are_kept_with_their_tones_too() -> None:
    assert prepare("phở bò", SIMPLE).words == "pho bo phở"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("The Who", {"the who": 1}),
        ("to be or not to be", {"to be": 2, "be or": 1, "or not": 1, "not to": 1}),
        ("It's the band, the band", {"it s": 1, "s the": 1}),
        ("Who", {"who": 1}),
        ("who sang", {}),
        ("don't", {"don t": 1}),
        ("C# is in", {"is in": 1}),
    ],
)
def test_adjacent_stop_words_are_one_lexeme(text: str, pairs: dict[str, int]) -> None:
    assert prepare(text, ENGLISH).stop_pairs == pairs


def test_a_query_of_stop_words_asks_for_pairs_of_the_text_that_says_it() -> None:
    text = prepare("They saw The Who live. To be, or not to be: that was Hamlet.", ENGLISH)
    for query in ("the who", "to be or not to be", "‘To be or not to be’"):
        pairs = set(prepare(query, ENGLISH).stop_pairs)
        assert pairs
        assert pairs <= set(text.stop_pairs)


MIXED = st.sampled_from(
    " \n.,-_/:@#+&'\"()<>=abcABC019éßÅİёй部署한글กิ้น’“–‐\u200b\u0301½²٠ａ１：ỳ🎉"
)
TEXTS = (
    st.text(MIXED, max_size=60)
    | st.text(max_size=60)
    | st.text(st.sampled_from("abC1 ._-/:@+#&"), max_size=40)
)


@settings(deadline=None)
@given(TEXTS, st.data())
def test_what_is_pasted_from_a_text_asks_only_for_lexemes_of_the_text(
    text: str, data: st.DataObject
) -> None:
    """Cut at any blank, except inside a word that is broken by a hyphen at a line's end."""
    blanks = [
        place
        for place, character in enumerate(text)
        if character.isspace() and text[:place].rstrip()[-1:] not in tuple("-\u2010")
    ]
    cuts = [0, *blanks, len(text)]
    first = data.draw(st.integers(0, len(cuts) - 1))
    last = data.draw(st.integers(first, len(cuts) - 1))
    pasted = text[cuts[first] : cuts[last]]
    for analyzer in ANALYZERS:
        query, document = prepare(pasted, analyzer), prepare(text, analyzer)
        assert lexemes(query) <= lexemes(document)
        assert all(query.exact[lexeme] <= document.exact[lexeme] for lexeme in query.exact)


@settings(deadline=None)
@given(st.text(st.sampled_from("abcABC ._-/:\\@+#"), max_size=40), st.data())
def test_the_words_of_any_cut_at_a_joint_are_words_of_the_text(
    text: str, data: st.DataObject
) -> None:
    joints = [place for place, character in enumerate(text) if not character.isalpha()]
    cuts = sorted({0, *joints, len(text)})
    first = data.draw(st.integers(0, len(cuts) - 1))
    last = data.draw(st.integers(first, len(cuts) - 1))
    query = prepare(text[cuts[first] : cuts[last]], SIMPLE)
    assert _long(query) <= _long(prepare(text, SIMPLE))


def _long(prepared: Prepared) -> set[str]:
    """Words of two letters and more: of `C++` and of `U.S.` no single letter is a word."""
    return {word for word in prepared.phrase.split() if len(word) > 1}


@settings(deadline=None)
@given(st.text(st.sampled_from(string.printable[:95]), max_size=60))
def test_case_changes_neither_words_nor_whole_lexemes(text: str) -> None:
    for analyzer in ANALYZERS:
        upper, lower = prepare(text.upper(), analyzer), prepare(text.lower(), analyzer)
        assert upper.phrase == lower.phrase == prepare(text, analyzer).phrase
        assert upper.exact == lower.exact == prepare(text, analyzer).exact


@settings(deadline=None)
@given(TEXTS)
def test_words_stand_apart_by_single_blanks(text: str) -> None:
    prepared = prepare(text, ENGLISH)
    assert prepared.words == " ".join(prepared.words.split())
    assert "" not in prepared.exact
    assert set(prepared.words.split()) >= set(prepared.phrase.split())


def test_trigrams_find_substrings_in_any_case_and_accent() -> None:
    document = prepare("Réglages PostgreSQL, (nginx.conf)", TRIGRAM)
    assert document.words == ""
    assert document.exact["ost"] == 1
    for query in ("postgres", "GRESQ", "reglage", "x.conf"):
        asked = prepare(query, TRIGRAM).exact
        assert asked
        assert set(asked) <= set(document.exact)
    assert not prepare("by id a1", TRIGRAM).exact


def test_trigrams_of_a_word_never_reach_over_a_blank() -> None:
    assert prepare("ab cd", TRIGRAM).exact == {}


@settings(deadline=None)
@given(st.text(st.sampled_from("abcdeé.-/"), min_size=3, max_size=30), st.data())
def test_every_substring_of_a_word_shares_all_its_trigrams(word: str, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(word)))
    last = data.draw(st.integers(first, len(word)))
    asked = prepare(word[first:last], TRIGRAM).exact
    assert set(asked) <= set(prepare(word, TRIGRAM).exact)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("10 km", "a 10km run"),
        ("10km", "10km,"),
        ("10 kHz", "10KHz"),
        ("5 м", "5м"),
        ("3.14", "3,14"),
        ("19.99", "19,99€"),
        ("1234.50", "'1,234.50'"),
        ("1234.50", "‘1.234,50’"),
        ("0x1F", "0x1f"),
        ("PostgreSQL", "PostgreSQL™"),
        ("/etc/hosts", "“…/etc/hosts”"),
        ("get_user_by_id", "self.get_user_by_id(1)"),
        ("user_id", "row.user_id.length"),
        ("my_module", "lib/my_module.py"),
        ("Node.js", "Node.js-Server"),
        ("foo_bar", "foo_bar-like"),
        (".NET", "C#/.NET"),
        (".NET", ".NET-Framework"),
        (".bashrc", "~/.bashrc"),
        ("C#", "C♯"),
        ("1234.5", "١٬٢٣٤٫٥"),
        ("https://example.com/a", "**https://example.com/a/**"),
        ("https://example.com/a", "[https://example.com/a]"),
        ("me@example.com", "mailto:me@example.com"),
    ],
)
def test_another_way_of_writing_it_asks_for_lexemes_of_the_text(query: str, text: str) -> None:
    asked, found = prepare(query, SIMPLE), prepare(text, SIMPLE)
    assert asked.words or asked.exact
    assert set(asked.exact) <= set(found.exact)
    assert set(asked.phrase.split()) <= set(found.words.split())


@pytest.mark.parametrize(
    ("one", "other"),
    [("1,5", "15"), ("1,2,3", "1.2"), ("5 m", "5mm"), ("0x1f", "1f"), ("C-3PO", "po")],
)
def test_what_is_written_alike_is_not_the_same(one: str, other: str) -> None:
    asked, found = prepare(one, SIMPLE), prepare(other, SIMPLE)
    names = {*asked.words.split(), *asked.exact}
    assert not {*found.words.split(), *found.exact} <= names
