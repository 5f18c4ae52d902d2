"""A load of documents while everything fails: what is lost, doubled, stale or paid for twice.

Documents are sent, some in two versions, while the worker is killed again and again, the database
is restarted, and the providers of embeddings and of headers answer 30 % of the calls with 429, 500
or not at all. In the end every document is ready in its last version, and no text was paid for
twice except what was in flight when something was killed.
"""

import argparse
import asyncio
import dataclasses

from support.load_faults import Outcome, Plan, loading


async def main(plan: Plan) -> int:
    """Run the plan and print what was found; 1 when anything is wrong."""
    async with loading(plan) as load:
        outcome = await load.run()
    for name, value in dataclasses.asdict(outcome).items():
        print(f"{name:18} {value}")
    return int(is_wrong(plan, outcome))


def is_wrong(plan: Plan, outcome: Outcome) -> bool:
    """Whether anything was lost, doubled, left stale or paid for twice without a reason."""
    lost = outcome.states != {"ready": plan.documents} or outcome.wrong_documents
    return bool(lost or outcome.missing_headers or outcome.unexplained)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--with-headers", type=int, default=400)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20240607)
    parser.add_argument("--hangs", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    raise SystemExit(asyncio.run(main(Plan(**vars(given)))))
