"""The project of `shoal init --recipe newspaper`: its test passes, and it runs."""

from __future__ import annotations

from shoal.demo.shop import Shop
from tests.support.project import Project


def test_a_project_with_a_newspaper(project: Project) -> None:
    project.shoal("init", ".", "--recipe", "newspaper")
    assert "2 passed" in project.run_own_tests()
    paper = project.folder / "configs/fiji/times.yaml"
    with Shop(per_category=21, latency=(0, 0)).serving() as shop:
        paper.write_text(paper.read_text().replace("http://127.0.0.1:8001", shop.url))
        project.shoal("run", "fiji.times")
        titles = {truth.title for truth in shop.facts().products.values() if truth.category == "Garden"}
    assert {record["title"] for record in project.export()} == titles
