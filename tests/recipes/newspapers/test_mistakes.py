"""Mistakes in a newspaper's file: one sentence with the file, the line and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.define.load import load_scraper
from shoal.errors import InvalidScraper
from tests.support.project import Project

GOOD = """\
base_url: https://paper.example
listing:
  type: pagination
  url_template: https://paper.example/news/{num}
selectors:
  thumbnail:
    container: .card
    url: h2 a
  article:
    body: .text
"""
API = "type: api\n  pagination_type: offset\n  json_paths: {collection: posts, url: link}"

ARCHIVE = "type: archive\n  start_date: 2023-01-31"


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_the_smallest_file(tmp_path: Path) -> None:
    folder = tmp_path / "fiji"
    folder.mkdir()
    (folder / "times.yml").write_text(GOOD)
    scraper = load_scraper("fiji/times.yml", {}, tmp_path)
    assert scraper.name == "fiji.times"
    assert list(scraper.stages) == ["listing", "article"]
    version = scraper.code_version
    (folder / "times.yml").write_text(GOOD + "# changed\n")
    assert load_scraper("fiji/times.yml", {}, tmp_path).code_version != version


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD + "rate_limt: 2\n", 11, "there is no key rate_limt; did you mean rate_limit?"),
        (GOOD + "enabeld: false\n", 11, "there is no key enabeld; did you mean enabled?"),
        (GOOD + "batch_size: 3\n", 11, "there is no key batch_size; did you mean listing.batch_size?"),
        (changed("    url: h2 a", "    ulr: h2 a"), 8, "there is no key selectors.thumbnail.ulr; did you mean"),
        (changed("base_url: https://paper.example\n", ""), 1, "base_url is missing."),
        (changed("    body: .text", "    tags: .tag"), 9, "selectors.article.body is missing."),
        (changed("type: pagination", "type: pages"), 3, "listing.type must be pagination or archive or api."),
        (changed("  type: pagination\n", ""), 2, "listing.type is missing."),
        (GOOD + "rate_limit: fast\n", 11, "rate_limit is not right: it must be a number, not a text."),
        (GOOD + "concurrency: 0\n", 11, "concurrency is not right: it must be a whole number >= 1."),
        (GOOD + "client: browser\n", 11, "client is browser, but newspapers are fetched without a browser: over HTTP."),
        (GOOD + "client: playwright\n", 11, "client is playwright, but newspapers are fetched without a browser"),
        (changed("https://paper.example\n", "paper.example\n"), 1, "base_url: 'paper.example' is not a valid absolute"),
        (changed("/news/{num}", "/news"), 4, "the same for every page: 'https://paper.example/news' has no {num}."),
        (changed("/news/{num}", "/news#{num}"), 4, "listing.url_template leads to the same page twice"),
        (
            changed("type: pagination", API).replace("{num}", "{page}"),
            6,
            "listing.url_template has {page}, which is not filled in: 'https://paper.example/news/{page}'.",
        ),
        (changed("type: pagination", API).replace("{num}", "{size}"), 6, "news/{size}' has no {num} or {offset}."),
        (
            changed("type: pagination", ARCHIVE).replace("{num}", "{year}/{month}/{dy}"),
            5,
            "listing.url_template has {dy}, which is not filled in",
        ),
        (changed("type: pagination", ARCHIVE).replace("{num}", "{year}/{month}"), 5, "leads to the same page twice"),
        (changed("type: pagination", ARCHIVE).replace("{num}", "{month}/{day}"), 5, "leads to the same page twice"),
        (
            changed("type: pagination", ARCHIVE + "\n  date_format: monthly").replace("{num}", "{year}-{day}"),
            6,
            "leads to the same page twice",
        ),
        (changed("{num}", "{num:>3}"), 4, "listing.url_template has {num:>3}, which is no format of a number."),
        (
            changed("{num}\n", "{num}\n  start_url: /news/{num}\n"),
            5,
            "listing.start_url is '/news/{num}', but it is one",
        ),
        (changed("{num}\n", "{num}\n  exclude: {section: video}\n"), 5, "which only a listing of type api has."),
        (
            changed("{num}\n", "{num}\n  start_date: 2024-01-01\n"),
            5,
            "there is no key listing.start_date with type pagination; type archive has it.",
        ),
        (changed("{num}\n", "{num}\n  start_pag: 2\n"), 5, "listing.start_pag; did you mean listing.start_page?"),
        (changed("type: pagination", "type: paginaton"), 3, "archive or api; did you mean pagination?"),
        (
            changed("type: pagination", "type: archive\n  start_date: 2024-02-31"),
            4,
            "listing.start_date is not right: it must be a day such as 2024-06-01.",
        ),
        (
            changed("type: pagination", "type: archive\n  start_date: 2024-02-01\n  end_date: 2024-01-01").replace(
                "{num}", "{year}{month:d}"
            ),
            5,
            "listing.end_date is 2024-01-01, which is before start_date.",
        ),
        (
            changed("type: pagination", API.replace("link}", "link, source: meta.source}")).replace(
                "{num}", "{offset}"
            ),
            5,
            "listing.json_paths.source: source is always the newspaper's name.",
        ),
        (
            changed("type: pagination", API.replace("link}", "link, country: [a]}")).replace("{num}", "{offset}"),
            5,
            "listing.json_paths.country: country is always the newspaper's country.",
        ),
        (changed(".card", "'.card['"), 7, "selectors.thumbnail.container is '.card[', which is no CSS selector"),
        (changed("  thumbnail:\n    container: .card\n    url: h2 a\n", ""), 5, "selectors.thumbnail is missing"),
        (changed("{num}\n", "{num}\n  exclude: '('\n"), 5, "listing.exclude has '(', which is no regular expression"),
        (
            GOOD + "cleaning: {date: mont_first}\n",
            11,
            "cleaning.date has no function 'mont_first'; did you mean month_first?",
        ),
        (GOOD + "cleaning:\n  body: nowhere:tidy\n", 12, "cleaning.body: There is no module 'nowhere'."),
        (
            GOOD + "auth: {type: header, variable: NO_SUCH_SECRET}\n",
            11,
            "auth.variable is NO_SUCH_SECRET, but there is no",
        ),
        (GOOD + "auth: {type: header, token: abc}\n", 11, "there is no key auth.token"),
        (GOOD + "headers: {'X Y': a}\n", 11, "headers.X Y cannot be sent as a header."),
        (GOOD + "known: data/*.parquet\n", 11, "known is 'data/*.parquet'; it must end in .csv, .jsonl, .txt."),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(tmp_path: Path, text: str, line: int, words: str) -> None:
    (tmp_path / "paper.yaml").write_text(text)
    with pytest.raises(InvalidScraper) as refused:
        load_scraper("paper.yaml", {}, tmp_path)
    message = refused.value.message
    assert message.startswith(f"{tmp_path / 'paper.yaml'}, line {line}: ")
    assert words in message
    assert "\n" not in message
    assert refused.value.remedy
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("paths", ["{url: link}", '{collection: "", url: link}', "{collection: , url: link}"])
def test_the_path_of_the_articles_may_be_the_response(tmp_path: Path, paths: str) -> None:
    api = API.replace("{collection: posts, url: link}", paths)
    (tmp_path / "paper.yaml").write_text(changed("type: pagination", api).replace("{num}", "{offset}"))
    with pytest.raises(InvalidScraper, match=r"line 5: listing\.json_paths\.collection is missing") as refused:
        load_scraper("paper.yaml", {}, tmp_path)
    assert refused.value.remedy == "Write the path of the list of articles, or $ if the response is that list."


def test_a_key_without_a_value_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    empty = ("headers", "cleaning", "known", "auth", "user_agent", "language", "group", "timeout", "max_pages")
    text = GOOD + "".join(f"{key}:\n" for key in empty)
    text = text.replace("    url: h2 a\n", "    url: h2 a\n    date:\n    title: ''\n")
    text = text.replace("    body: .text\n", "    body: .text\n    tags: ''\n    date:\n")
    text = text.replace("/news/{num}\n", "/news/{num}\n  exclude:\n  batch_size:\n  start_url: ''\n")
    (tmp_path / "paper.yaml").write_text(text)
    assert load_scraper("paper.yaml", {}, tmp_path).stages
    (tmp_path / "paper.yaml").write_text(GOOD.replace("body: .text", "body:\n    tags: .tag"))
    with pytest.raises(InvalidScraper, match=r"line 9: selectors\.article\.body is missing"):
        load_scraper("paper.yaml", {}, tmp_path)


@pytest.mark.parametrize(
    ("listing", "template"),
    [
        (ARCHIVE, "{year}/{month:d}/{day:02d}"),
        (ARCHIVE + "\n  date_format: monthly", "{year}-{month}"),
        (ARCHIVE + "\n  end_date: 2023-12-31", "{month}/{day}"),
        ("type: archive\n  start_date: 9999-12-31", "{year}/{month}/{day}"),
        (API, "{offset}/{size}"),
    ],
)
def test_templates_whose_pages_differ(tmp_path: Path, listing: str, template: str) -> None:
    (tmp_path / "paper.yaml").write_text(changed("type: pagination", listing).replace("{num}", template))
    assert load_scraper("paper.yaml", {}, tmp_path).stages


def test_the_command_line_reports_it_and_starts_nothing(project: Project) -> None:
    (project.folder / "paper.yaml").write_text(GOOD + "max_page: 2\n")
    refused = project.shoal("run", "paper.yaml", code=2)
    assert (
        "paper.yaml, line 11: there is no key max_page; did you mean max_pages? Correct or remove it." in refused.stderr
    )
    assert not Path(project.ledger).exists()
