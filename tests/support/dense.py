"""Asks the dense leg as a search does."""

import msgspec

from service.db.candidates import CandidateQuery
from service.db.pool import Database
from service.models import Collection, Vector
from service.search.dense import DenseAnswer, FilterShares, dense_leg
from service.search.request import Query, SearchRequest, plan_search


async def ask(
    database: Database,
    collection: Collection,
    vector: Vector,
    *,
    shares: FilterShares | None = None,
    limit: int | None = None,
    **request: object,
) -> DenseAnswer:
    """The dense leg of a search for a vector; without a limit the pool is that of the request."""
    asked = SearchRequest(Query(vector=vector.tolist()), mode="vector", **request)  # type: ignore[arg-type]
    plan = plan_search(asked, collection)
    query = CandidateQuery(
        collection.generation.id, asked.scope, plan.filter, limit or plan.pool, plan.per_document
    )
    return await dense_leg(database, shares or FilterShares(), plan, query, vector)


def ids(answer: DenseAnswer) -> list[str]:
    """The chunks, best first."""
    return [one.chunk_id for one in answer.candidates]


def without_index(collection: Collection) -> Collection:
    """The same collection as if no index had been built."""
    generation = msgspec.structs.replace(collection.generation, vector_index=None)
    return msgspec.structs.replace(collection, generation=generation)
