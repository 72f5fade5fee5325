"""Secrets of a scraper: its code has them, and neither the ledger, nor the logs, nor the screen."""

from __future__ import annotations

from pathlib import Path

from tests.support.project import Project
from tests.support.site import Site

API_KEY, MARKED, LOGIN = "k3y-of-the-service", "m4rked-as-secret", "p4ssw0rd-in-a-url"

SCRAPER = """
from dataclasses import dataclass
from shoal import Secret

@dataclass
class Settings:
    site: str
    api_key: str
    own: Secret = ""
    region: str = "north"

shop = Scraper("shop", settings=Settings, headers={"Authorization": "Bearer t0ken-of-the-headers"}, robots=False)

@shop.stage(retries=0, lane=None)
async def page(item: Item, http: Http, settings: Settings, log: Log):
    log.warning("asking", url=f"{settings.site}/?token={settings.api_key}", settings=settings, own=settings.own)
    if item.key == "fails":
        await http.get(f"{settings.site}/status/404", params={"token": settings.api_key, "page": 2})
    if item.key == "breaks":
        raise ValueError(f"the service says {settings.own} is wrong")
    yield {"lengths": [len(settings.api_key), len(settings.own)]}

@shop.stage(retries=0, lane=None)
async def last(item: Item, settings: Settings):
    yield {"lengths": [len(settings.api_key), len(settings.own)]}

shop.start(page.item(key="fails"), page.item(key="breaks"), page.item(key="works"))
"""


def configure(project: Project, site: Site) -> None:
    project.write(SCRAPER)
    (project.folder / "shoal.toml").write_text(
        f'[scrapers.shop.settings]\nsite = "{site.url}"\napi_key = "{API_KEY}"\nown = "{MARKED}"\n'
    )


def kept(folder: Path) -> dict[str, bytes]:
    """All that was written, but for what the user wrote."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name not in ("shop.py", "shoal.toml") and file.suffix != ".pyc"
    }


def test_no_secret_is_stored_or_printed(either: Project) -> None:
    with Site() as site:
        configure(either, site)
        either.shoal("run", "shop.py", "--max-dead", "100%", SHOAL_LOG_LEVEL="debug")
        either.shoal("runs", "show", "latest")
        either.shoal("runs", "show", "latest", "--json")
    for name, content in kept(either.folder).items():
        for secret in (API_KEY, MARKED, "t0ken-of-the-headers"):
            assert secret.encode() not in content, f"{secret} is in {name}"
    assert dict(either.run().settings) == {
        "site": site.url,
        "api_key": "***",
        "own": "***",
    }
    errors = {key: [attempt.error or "" for attempt in made] for key, made in either.attempts().items()}
    assert "token=***&page=2" in errors["fails"][0]
    assert "the service says *** is wrong" in errors["breaks"][0]
    assert [record["lengths"] for record in either.export()] == [[len(API_KEY), len(MARKED)]]


def test_a_resumed_run_has_its_secrets_from_the_configuration(project: Project) -> None:
    with Site() as site:
        configure(project, site)
        project.shoal("run", "shop.py", "--limit", "2", "--max-dead", "100%")
        assert project.counts().remaining == 1
        project.shoal("run", "shop.py", "--resume", "--max-dead", "100%")
    assert [record["lengths"] for record in project.export()] == [[len(API_KEY), len(MARKED)]]


def test_a_url_is_fetched_as_it_is_and_shown_without_its_login(project: Project) -> None:
    with Site(pages=3) as site:
        project.write(
            """
            shop = Scraper("shop", robots=False)

            @shop.stage(lane=None)
            async def page(page: Page):
                yield {"title": page.css("title::text").get()}
            """
        )
        address = f"{site.url}/page/1".replace("http://", f"http://me:{LOGIN}@") + "?token=abc&n=1"
        project.shoal("run", "shop.py", "--urls-file", project.urls([address]))
        (visit,) = [visit for visit in site.visits() if visit.path.startswith("/page/")]
    assert visit.path == "/page/1?token=abc&n=1"
    assert [item.url for item in project.items()] == [address]
    shown = project.shoal("items", "ls", "latest").stdout + project.shoal("items", "ls", "latest", "--json").stdout
    shown += project.shoal("export", "latest", "--meta").stdout
    assert LOGIN not in shown
    assert "token=abc" not in shown
    assert shown.count("/page/1?token=***&n=1") >= 2


def test_a_mistyped_address_does_not_show_its_password(project: Project) -> None:
    for address in (
        "postgresql:/me:s3cret@h/db",
        "me:s3cret@h/db",
        "postgresql://me:s3c/ret@h/db",
        "mysql://m:s3cret@h",
    ):
        refused = project.shoal("status", "--ledger", address, code=2)
        assert "s3c" not in refused.stderr
    extra = project.shoal("status", "run", "postgresql://me:s3cret@h/db", code=2)
    assert "s3cret" not in extra.stderr
    assert "postgresql://me:***@h/db" in extra.stderr


def test_settings_that_are_wrong_are_told_without_their_values(project: Project) -> None:
    project.write(
        """
        from pydantic import BaseModel, SecretStr

        class Settings(BaseModel):
            api_key: SecretStr
            pages: int

        shop = Scraper("shop", settings=Settings)

        @shop.stage
        async def page(item: Item, settings: Settings):
            yield {"length": len(settings.api_key.get_secret_value())}

        shop.start(page.item(key="a"))
        """
    )
    table = f'[scrapers.shop.settings]\napi_key = "{API_KEY}"\npages = "{MARKED}"\n'
    (project.folder / "shoal.toml").write_text(table)
    refused = project.shoal("run", "shop.py", code=2)
    assert "pages" in refused.stderr
    assert MARKED not in refused.stderr
    (project.folder / "shoal.toml").write_text(table.replace(f'"{MARKED}"', "1"))
    project.shoal("run", "shop.py")
    assert [record["length"] for record in project.export()] == [len(API_KEY)]
    assert dict(project.run().settings) == {"api_key": "***", "pages": 1}
