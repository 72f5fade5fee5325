"""An example with three stages that scale apart: a list of people, their profiles, their links elsewhere."""

from shoal import Page, Scraper

people = Scraper("people")


@people.stage(rate="5/s")
async def username(page: Page):
    for link in page.css("a::attr(href)").getall():
        yield profile.item(page.join(link))


@people.stage(rate="5/s")
async def profile(page: Page):
    yield {"profile": page.url, "name": page.css("h1::text").get()}
    for link in page.css("a.social::attr(href)").getall():
        yield social.item(page.join(link))


@people.stage(rate="5/s")
async def social(page: Page):
    yield {"link": page.url, "title": page.css("title::text").get()}
