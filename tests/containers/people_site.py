"""A stand-in for deploy/scrapers/people.py: a list of people, their pages, and pages that these lead to."""

from __future__ import annotations

from shoal.demo.stand_in import StandIn, StandInRequest, StandInResponse

LIST = "/people"


class PeopleStandIn(StandIn):
    """`/people` has a link to `/person/N` for each of `people`, and that one to `/social/N`.

    `/script` says something only to a client that runs scripts.
    """

    name = "people"

    def __init__(self, *, people: int, latency: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__(latency=latency)
        self.people = people

    def paths(self) -> set[str]:
        return {LIST} | {f"/{what}/{number}" for what in ("person", "social") for number in range(self.people)}

    async def answer(self, request: StandInRequest) -> StandInResponse:
        _, what, *rest = request.path.split("/")
        if request.path == LIST:
            return StandInResponse(body="".join(f'<a href="/person/{number}">.</a>' for number in range(self.people)))
        if request.path == "/script":
            return StandInResponse(body="<h1></h1><script>document.querySelector('h1').textContent = 6 * 7</script>")
        if request.path not in self.paths():
            return StandInResponse(body="not found", status=404)
        if what == "person":
            return StandInResponse(body=f'<h1>Person {rest[0]}</h1><a class="social" href="/social/{rest[0]}">.</a>')
        return StandInResponse(body=f"<title>Social {rest[0]}</title>")
