"""The report of a campaign: what became of its runs, what was wrong, and the same as a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from tests.chaos.site_log import Politeness


class Recovery(msgspec.Struct, frozen=True):
    """A fault: the seconds from its end until an item was done again, and until every item that had been leased when
    it began was finished or had another lease.
    """

    fault: str
    first: float
    held: float


class RunReport(msgspec.Struct, kw_only=True):
    """How the items of a run ended. `lost`: neither ended nor waiting, or done without a record; `wrong`: ended
    otherwise than their page demands, or with a record of another page.
    """

    items: int
    done: int = 0
    dead: int = 0
    unfinished: int = 0
    lost: int = 0
    stored_twice: int = 0
    wrong: list[str] = []
    worker_restarts: int = 0


class TorReport(msgspec.Struct, frozen=True):
    """Requests through Tor, and what did not go through it. Delays are not judged: each circuit has its own latency."""

    visits: int = 0
    direct: int = 0
    examples: tuple[str, ...] = ()


class CampaignReport(msgspec.Struct, kw_only=True):
    """`commit`: of the code, as git describes it. `interrupted`: why the campaign ended before it was judged; what it
    says of losses and politeness means nothing then. `left_out`: what a full campaign has and this one had not.
    """

    seed: int
    minutes: float
    commit: str = ""
    interrupted: str = ""
    left_out: list[str] = []
    minutes_taken: float = 0.0
    runs: dict[str, RunReport] = {}
    hostile_pages: dict[str, int] = {}
    audit: list[str] = []
    politeness: Politeness = Politeness()
    tor: TorReport | None = None
    waits_checked: int = 0
    unexplained: list[str] = []
    stalls: list[str] = []
    failed_faults: list[str] = []
    repeated_commands: int = 0
    pooler_crashes: int = 0
    pages_per_second: float = 0.0
    faults: dict[str, int] = {}
    recoveries: list[Recovery] = []

    @property
    def problems(self) -> list[str]:
        wrong = {
            "found by the audit": len(self.audit),
            "too close together": self.politeness.gaps,
            "more at once than allowed": self.politeness.crowds,
            "direct requests": self.politeness.direct + (self.tor.direct if self.tor is not None else 0),
            "waits without a true reason": len(self.unexplained),
            "stalls": len(self.stalls),
            "faults that failed themselves": len(self.failed_faults),
        }
        for name, run in self.runs.items():
            wrong[f"lost ({name})"] = run.lost
            wrong[f"stored twice ({name})"] = run.stored_twice
            wrong[f"ended otherwise than expected ({name})"] = len(run.wrong)
            wrong[f"not finished ({name})"] = run.unfinished
        problems = [f"{number} {name}" for name, number in wrong.items() if number]
        return [*([f"not judged: {self.interrupted}"] if self.interrupted else []), *self.left_out, *problems]

    def table(self) -> str:
        """The report for a reader, as Markdown."""
        seen = self.politeness
        total = _sum(self.runs.values())
        rows: list[tuple[str, object]] = [
            ("minutes", f"{self.minutes_taken:.1f} of {self.minutes:g}"),
            ("items", f"{total.items} ({', '.join(f'{name} {run.items}' for name, run in self.runs.items())})"),
            ("done, dead", f"{total.done}, {total.dead}"),
            ("not finished", total.unfinished),
            ("lost", total.lost),
            ("stored twice", total.stored_twice),
            ("ended otherwise than their page demands", len(total.wrong)),
            ("hostile pages, all kinds", sum(self.hostile_pages.values())),
            ("findings of the audit", len(self.audit)),
            ("visits by the logs of the sites", seen.visits + (self.tor.visits if self.tor else 0)),
            ("too close together", f"{seen.gaps} (excused: {seen.late_gaps} late, {seen.orphan_gaps} without a lease)"),
            ("more at once than allowed", f"{seen.crowds} (excused: {seen.orphan_crowds} without a lease)"),
            ("direct requests, proxies", seen.direct),
            ("direct requests and packets, Tor", "no Tor here" if self.tor is None else self.tor.direct),
            ("long waits looked at", self.waits_checked),
            ("waits without a true reason", len(self.unexplained)),
            ("stalls", len(self.stalls)),
            ("workers started again, crashes of the pooler", f"{total.worker_restarts}, {self.pooler_crashes}"),
            ("commands that failed under a fault and were repeated", self.repeated_commands),
            ("pages per second", f"{self.pages_per_second:g}"),
            ("faults", sum(self.faults.values())),
            ("first item done after a fault, seconds", _spread(each.first for each in self.recoveries)),
            ("held items moved on, seconds", _spread(each.held for each in self.recoveries)),
        ]
        lines = ["| what | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
        lines += ["", "| fault | times | first item done: p50, p95, max (s) | held items moved on: p50, p95, max (s) |"]
        lines += ["|---|---|---|---|"]
        for fault, times in sorted(self.faults.items()):
            found = [each for each in self.recoveries if each.fault == fault]
            spreads = _spread(each.first for each in found), _spread(each.held for each in found)
            lines.append(f"| {fault} | {times} | {spreads[0]} | {spreads[1]} |")
        return "\n".join(lines)


def _sum(runs: Iterable[RunReport]) -> RunReport:
    found = list(runs)
    return RunReport(
        items=sum(run.items for run in found),
        done=sum(run.done for run in found),
        dead=sum(run.dead for run in found),
        unfinished=sum(run.unfinished for run in found),
        lost=sum(run.lost for run in found),
        stored_twice=sum(run.stored_twice for run in found),
        wrong=[text for run in found for text in run.wrong],
        worker_restarts=sum(run.worker_restarts for run in found),
    )


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _spread(values: Iterable[float]) -> str:
    found = list(values)
    if not found:
        return "-"
    return f"{statistics.median(found):.1f}, {percentile(found, 0.95):.1f}, {max(found):.1f}"
