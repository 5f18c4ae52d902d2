"""The dense leg: exact cosine over the vectors of one generation."""

from pgvector import HalfVector

from service.db.candidates import CandidateQuery, as_candidates, best_first, eligible
from service.db.pool import Connection
from service.models import Candidate, Vector


async def dense_candidates(
    connection: Connection, query: CandidateQuery, vector: Vector
) -> list[Candidate]:
    """Rows by cosine similarity to `vector`, the most similar first; scores are exact cosine."""
    arguments: list[object] = [HalfVector(vector)]
    condition = f"{eligible(query, arguments)} AND embedding IS NOT NULL"
    statement = best_first(query, "1 - (embedding <=> $1)", condition, arguments)
    return as_candidates(await connection.fetch(statement, *arguments))
