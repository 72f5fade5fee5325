"""The contract of a ledger as tests. Derive a class from `LedgerConformance` and define a `harness` fixture:

class TestMyLedger(LedgerConformance):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[LedgerHarness]: ...
"""

from shoal.testing.conformance.access import AccessConformance
from shoal.testing.conformance.budgets import BudgetConformance
from shoal.testing.conformance.changes import ChangesConformance
from shoal.testing.conformance.claims import ClaimsConformance, WorkersConformance
from shoal.testing.conformance.commits import CommitsConformance
from shoal.testing.conformance.exits import ExitsConformance
from shoal.testing.conformance.failures import FailuresConformance
from shoal.testing.conformance.history import HistoryConformance
from shoal.testing.conformance.host_slots import HostSlotConformance
from shoal.testing.conformance.intake import IntakeConformance
from shoal.testing.conformance.lane_delays import LaneDelayConformance
from shoal.testing.conformance.lane_lists import LaneListsConformance
from shoal.testing.conformance.lanes import LanesConformance
from shoal.testing.conformance.lists import ListsConformance
from shoal.testing.conformance.pools import WorkerPoolsConformance
from shoal.testing.conformance.reads import ReadsConformance
from shoal.testing.conformance.record_keys import RecordKeysConformance
from shoal.testing.conformance.redirects import RedirectsConformance
from shoal.testing.conformance.replay import ReplayConformance
from shoal.testing.conformance.runs import RunsConformance
from shoal.testing.conformance.sessions import SessionsConformance
from shoal.testing.conformance.steering import LocksConformance, SteeringConformance
from shoal.testing.conformance.views import ViewsConformance


class LedgerConformance(
    RunsConformance,
    IntakeConformance,
    ClaimsConformance,
    CommitsConformance,
    ChangesConformance,
    RecordKeysConformance,
    RedirectsConformance,
    WorkersConformance,
    LanesConformance,
    LaneDelayConformance,
    HostSlotConformance,
    ExitsConformance,
    BudgetConformance,
    SteeringConformance,
    ReplayConformance,
    ReadsConformance,
    ListsConformance,
    LaneListsConformance,
    FailuresConformance,
    HistoryConformance,
    LocksConformance,
    SessionsConformance,
    WorkerPoolsConformance,
    AccessConformance,
    ViewsConformance,
):
    """The whole contract."""


__all__ = ["LedgerConformance"]
