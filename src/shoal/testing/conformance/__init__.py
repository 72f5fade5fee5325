"""What every ledger must do, as tests. Derive a class from `LedgerConformance` and give it a `lab` fixture:

class TestMyLedger(LedgerConformance):
    @pytest.fixture
    async def lab(self) -> AsyncIterator[Lab]: ...
"""

from shoal.testing.conformance.claims import ClaimsConformance
from shoal.testing.conformance.commits import CommitsConformance
from shoal.testing.conformance.errands import ErrandsConformance
from shoal.testing.conformance.intake import IntakeConformance
from shoal.testing.conformance.lanes import LanesConformance
from shoal.testing.conformance.pace import PaceConformance
from shoal.testing.conformance.reads import ReadsConformance
from shoal.testing.conformance.runs import RunsConformance
from shoal.testing.conformance.steering import SteeringConformance
from shoal.testing.conformance.visits import VisitConformance
from shoal.testing.conformance.workers import WorkersConformance


class LedgerConformance(
    RunsConformance,
    IntakeConformance,
    ClaimsConformance,
    CommitsConformance,
    WorkersConformance,
    LanesConformance,
    PaceConformance,
    VisitConformance,
    SteeringConformance,
    ReadsConformance,
    ErrandsConformance,
):
    """The whole contract."""


__all__ = ["LedgerConformance"]
