"""What every ledger must do, as tests. Derive a class from `LedgerConformance` and give it a `harness` fixture:

class TestMyLedger(LedgerConformance):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[LedgerHarness]: ...
"""

from shoal.testing.conformance.claims import ClaimsConformance
from shoal.testing.conformance.commits import CommitsConformance
from shoal.testing.conformance.host_slots import HostSlotConformance
from shoal.testing.conformance.intake import IntakeConformance
from shoal.testing.conformance.lane_delays import LaneDelayConformance
from shoal.testing.conformance.lanes import LanesConformance
from shoal.testing.conformance.locks import LocksConformance
from shoal.testing.conformance.reads import ReadsConformance
from shoal.testing.conformance.runs import RunsConformance
from shoal.testing.conformance.steering import SteeringConformance
from shoal.testing.conformance.workers import WorkersConformance


class LedgerConformance(
    RunsConformance,
    IntakeConformance,
    ClaimsConformance,
    CommitsConformance,
    WorkersConformance,
    LanesConformance,
    LaneDelayConformance,
    HostSlotConformance,
    SteeringConformance,
    ReadsConformance,
    LocksConformance,
):
    """The whole contract."""


__all__ = ["LedgerConformance"]
