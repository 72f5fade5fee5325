"""The report of a campaign names what is wrong, whatever it is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.report import CampaignReport, Recovery, RunReport, TorReport
from tests.chaos.site_log import Politeness

CLEAN = CampaignReport(
    seed=1,
    minutes=60,
    minutes_taken=50.0,
    runs={"shop": RunReport(items=10, done=9, dead=1), "homes": RunReport(items=5, done=5)},
    politeness=Politeness(visits=20, late_gaps=3, orphan_crowds=2),
    tor=TorReport(visits=4),
    faults={"kill": 3},
    recoveries=[Recovery("kill", 1.0, 6.0), Recovery("kill", 2.0, 7.5), Recovery("kill", 9.0, 9.0)],
)


def test_what_was_excused_is_no_problem_and_is_printed() -> None:
    assert CLEAN.problems == []
    assert "| too close together | 0 (excused: 3 late, 0 without a lease) |" in CLEAN.table()
    assert "| items | 15 (shop 10, homes 5) |" in CLEAN.table()
    assert "| kill | 3 | 2.0, 9.0, 9.0 | 7.5, 9.0, 9.0 |" in CLEAN.table()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"runs": {"shop": RunReport(items=10, lost=2)}}, "2 lost (shop)"),
        ({"runs": {"homes": RunReport(items=10, stored_twice=1)}}, "1 stored twice (homes)"),
        ({"runs": {"shop": RunReport(items=10, wrong=["..."])}}, "1 ended otherwise than expected (shop)"),
        ({"runs": {"onion": RunReport(items=10, unfinished=3)}}, "3 not finished (onion)"),
        ({"politeness": Politeness(gaps=1)}, "1 too close together"),
        ({"politeness": Politeness(crowds=6)}, "6 more at once than allowed"),
        ({"politeness": Politeness(direct=1), "tor": TorReport(direct=2)}, "3 direct requests"),
        ({"interrupted": "KeyboardInterrupt"}, "not judged: KeyboardInterrupt"),
        ({"left_out": ["no tor"]}, "no tor"),
        ({"audit": ["..."]}, "1 found by the audit"),
        ({"unexplained": ["..."]}, "1 waits without a true reason"),
        ({"stalls": ["..."]}, "1 stalls"),
        ({"failed_faults": ["..."]}, "1 faults that failed themselves"),
    ],
)
def test_each_problem_is_named(change: dict[str, Any], problem: str) -> None:
    assert msgspec.structs.replace(CLEAN, **change).problems == [problem]


def test_an_interrupted_campaign_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Campaign, "_execute", interrupt)
    campaign = Campaign(minutes=1, items=10, seed=1, faults=())
    with pytest.raises(KeyboardInterrupt):
        campaign.execute(None, None)  # type: ignore[arg-type]
    assert campaign.report.problems == ["not judged: KeyboardInterrupt after 0.0 minutes"]
