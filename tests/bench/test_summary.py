"""The page of all results."""

import json
from pathlib import Path

from bench.summary import write_summary


def test_reports_of_another_kind_are_left_out(tmp_path: Path) -> None:
    target = {"claim": "a / b", "value": 1.5, "wanted": ">= 1", "hit": True}
    report = {"name": "speed", "question": "How fast?", "targets": [target], "figures": [], "notes": [], "machine": {}}
    (tmp_path / "speed.json").write_text(json.dumps(report))
    (tmp_path / "chaos.json").write_text('{"seed": 1, "minutes": 60}')
    write_summary(tmp_path)
    assert "| speed | a / b | 1.50 | >= 1 | hit |" in (tmp_path / "README.md").read_text()
