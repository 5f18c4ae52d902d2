"""A small load of what `make faults-indexing` does at size."""

from support.load_faults import Plan, loading


async def test_a_load_among_failures_loses_doubles_and_repeats_nothing() -> None:
    plan = Plan(documents=30, with_headers=6, kills=1, restarts=1, hangs=False)
    async with loading(plan) as load:
        outcome = await load.run()
    assert (outcome.kills, outcome.restarts) == (1, 1)
    assert outcome.states == {"ready": 30}
    assert outcome.wrong_documents == []
    assert outcome.missing_headers == 0
    assert outcome.unexplained == []
    assert outcome.troubles > 0
