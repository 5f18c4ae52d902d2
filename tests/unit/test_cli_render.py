"""What a search looks like in a terminal."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from service.cli.render import SNIPPET_CHARACTERS, render, snippet
from service.search.response import SearchResponse

HIT = {
    "id": "guide::3",
    "doc_id": "guide",
    "type": "chunk",
    "position": 3,
    "text": "Call rotate_api_key [bold]twice[/bold] to replace a key.",
    "context": None,
    "title": "Keys",
    "source": None,
    "metadata": {},
    "start": 0,
    "end": 40,
    "headings": ["Keys"],
    "score": 0.015812,
    "explain": {
        "dense": {"rank": 4, "score": 0.71, "contribution": 0.0109},
        "lexical": {"rank": 1, "score": 9.2, "contribution": 0.0049, "terms": {"rotat": 4.1}},
        "fused": {"rank": 1, "score": 0.0158},
    },
}
ANSWER = {
    "mode": "hybrid",
    "exhausted": False,
    "abstained": False,
    "degraded": [],
    "stages": {"embed": {"status": "ok", "ms": 9.1}, "lexical": {"status": "ok", "ms": 6.2}},
    "took_ms": 15.04,
    "hits": [HIT],
    "explain": {
        "fusion": {
            "method": "rrf",
            "weights": {"dense": 0.7, "lexical": 0.3},
            "rrf_k": 60,
            "reason": "set by the request",
        }
    },
}


def shown(answer: object, *, explain: bool = False) -> str:
    console = Console(width=120, record=True, markup=False, emoji=False, file=None, quiet=False)
    with console.capture() as capture:
        for part in render(msgspec.convert(answer, SearchResponse), "rotate", explain=explain):
            console.print(part)
    return capture.get()


def test_a_hit_shows_its_place_score_leg_ranks_id_and_text():
    lines = shown(ANSWER).splitlines()
    first = next(at for at, line in enumerate(lines) if "guide::3" in line)
    assert lines[first].split() == ["1", "0.0158", "4", "1", "guide::3"]
    assert lines[first + 1].strip() == HIT["text"]


def test_a_leg_that_did_not_find_the_hit_has_a_dash():
    hit = {**HIT, "explain": {"lexical": HIT["explain"]["lexical"]}}
    row = next(line for line in shown({**ANSWER, "hits": [hit]}).splitlines() if "guide" in line)
    assert row.split()[2:4] == ["–", "1"]  # noqa: RUF001


def test_timings_and_the_fusion_rule_stand_below_the_hits():
    assert (
        "1 hit in 15.0 ms (embed 9.1, lexical 6.2); rrf dense 0.7, lexical 0.3: set by the request"
    ) in shown(ANSWER)


def test_a_degraded_stage_is_named():
    degraded = [{"stage": "dense", "reason": "timeout"}]
    assert "degraded: dense was left out (timeout)" in shown({**ANSWER, "degraded": degraded})


def test_explain_shows_what_legs_and_words_added():
    text = shown(ANSWER, explain=True)
    assert "dense rank 4, score 0.7100, adds 0.0109" in text
    assert "lexical rank 1, score 9.2000, adds 0.0049 (rotat 4.10)" in text


def test_documents_stand_above_their_chunks():
    document = {
        "doc_id": "guide",
        "score": 0.0158,
        "title": "Keys",
        "source": None,
        "metadata": {},
        "start": 0,
        "end": 40,
        "headings": ["Keys"],
        "chunks": [HIT],
        "matched_chunk_ids": ["guide::3"],
    }
    answer = {name: value for name, value in ANSWER.items() if name != "hits"}
    lines = shown({**answer, "documents": [document]}).splitlines()
    first = next(at for at, line in enumerate(lines) if "guide" in line)
    assert lines[first].split() == ["1", "0.0158", "guide", "Keys"]
    assert lines[first + 1].split() == ["4", "1", "guide::3"]


def test_a_snippet_begins_shortly_before_the_first_word_of_the_query():
    text = "filler " * 100 + "and then the rotation of keys" + " filler" * 100
    part = snippet(text, "rotation").plain
    assert part.startswith("… filler")
    assert 0 <= part.index("rotation") < 60
    assert part.endswith(" …")


def test_a_snippet_shows_where_most_words_of_the_query_stand():
    text = "a key" + " filler" * 100 + " how to rotate a key " + "filler " * 100
    assert "rotate a key" in snippet(text, "rotate key").plain


def test_words_of_the_query_are_emphasized_whatever_their_case():
    text = snippet("Rotate the KEY", "key rotate")
    emphasized = [text.plain[span.start : span.end] for span in text.spans]
    assert sorted(emphasized) == ["KEY", "Rotate"]


@given(st.text(), st.text())
def test_any_text_and_query_give_a_bounded_snippet(text, query):
    assert len(snippet(text, query).plain) <= SNIPPET_CHARACTERS + 4
