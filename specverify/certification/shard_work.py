"""The work of a case, here or in another process: the state of a shard from its number."""

import hashlib
import pickle
from typing import Any

import numpy as np
import torch

from specverify.certification.case_tally import CaseTally
from specverify.certification.plan import Plan, PlannedCase, PlanRequest
from specverify.certification.shard import ShardSampler
from specverify.errors import UsageError
from specverify.sampling.tally import State
from specverify.subjects.guard import ended_process
from specverify.subjects.protocols import Subject


class ShardWork:
    """Runs shards of one planned case; another process plans it again from the same request."""

    def __init__(self, subject: Subject, planned: PlannedCase, seed: int) -> None:
        self._case, self._request, self._seed = planned.case.id, planned.request, seed
        self.sampler = _sampler(subject, planned, seed)

    def __call__(self, shard: int) -> State:
        """Run a shard."""
        return self.sampler.run(shard).state()

    def lost(self, shard: int, how: str) -> State:
        """The state of a shard in which the subject ended its process: nothing but the failure."""
        tally = CaseTally(self.sampler.case)
        tally.failure = f"{ended_process(self.sampler.subject, how)}, in shard {shard}"
        return tally.state()

    def __getstate__(self) -> dict[str, Any]:
        if self._request is None:
            raise UsageError("a case that was planned by hand runs with jobs=1 only")
        return {"request": pickle.dumps(self._request), "case": self._case, "seed": self._seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        np.seterr(all="warn", under="ignore")
        request, plan = _planned(state["request"])
        planned = next(planned for planned in plan.cases if planned.case.id == state["case"])
        self.__init__(request.subject, planned, state["seed"])


def _sampler(subject: Subject, planned: PlannedCase, seed: int) -> ShardSampler:
    return ShardSampler(subject, planned.generate, planned.case, planned.rows, seed)


_LAST: dict[bytes, tuple[PlanRequest, Plan]] = {}


def _planned(request: bytes) -> tuple[PlanRequest, Plan]:
    """The plan of a request; the last one is kept, since its cases follow one another."""
    key = hashlib.sha256(request).digest()
    if key not in _LAST:
        _LAST.clear()
        made = pickle.loads(request)
        _LAST[key] = made, made.plan()
    return _LAST[key]
