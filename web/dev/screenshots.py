"""The pictures of the dashboard in the documentation, taken by a real browser of a scene whose clock stands still.

    python -m web.dev.screenshots docs/img     or `make screenshots`

They are drawn with Inter and packed by pngquant where these are installed: the dashboard uses the font of the reader's
system, and a server has none that readers have.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from playwright.async_api import Page, async_playwright

from shoal.fetch.chromium import find_chromium
from shoal.model.item import ItemState
from shoal.model.views import ItemFilter
from web.dev.scene import Scene, open_scene, served

WIDTH, SCALE = 1280, 1.5
FONT = ':root { --font: "Inter", system-ui, sans-serif; font-feature-settings: "cv11"; }'
# Nothing is awaited any more, and every chart is drawn.
READY = """() => document.fonts.status === "loaded" && !document.querySelector(".placeholder")
    && [...document.querySelectorAll(".chart-canvas")].every((box) => box.querySelector("canvas"))"""


async def take_pictures(folder: Path) -> None:
    """Write a PNG for each page of the documentation into the folder."""
    with tempfile.TemporaryDirectory(prefix="shoal-scene-") as ledger_folder:
        scene = await open_scene(Path(ledger_folder), said=lambda text: print(text, file=sys.stderr))
        try:
            async with served(scene) as url:
                await _walk(url, await _pages(scene, url), folder)
        finally:
            await scene.ledger.close()


async def _pages(scene: Scene, url: str) -> dict[str, tuple[str, int]]:
    """The address and the height of each picture."""
    run, archive = scene.runs["counties"].id, scene.runs["archive"].id
    item = await _item_with_attempts(scene, archive)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        # Groups of dead items are made when they are first asked for.
        (await client.get(f"api/v1/runs/{archive}/failures")).raise_for_status()
    return {
        "overview": ("", 820),
        "run": (f"runs/{run}", 1000),
        "lanes": (f"runs/{run}/lanes", 820),
        "map": (f"runs/{run}/map", 860),
        "item": (f"runs/{archive}/items/{item}", 860),
        "failures": (f"runs/{archive}/failures", 860),
        "egress": ("egress", 960),
    }


async def _item_with_attempts(scene: Scene, run_id: str) -> int:
    """A dead item that was tried again: its attempts tell the most."""
    page = await scene.ledger.reads.items(run_id, ItemFilter(states=(ItemState.DEAD,)), limit=200)
    return max(page.rows, key=lambda item: (item.tries, -item.id)).id


async def _walk(url: str, pages: dict[str, tuple[str, int]], folder: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(os.environ.get("SHOAL_CHROMIUM", ""), ""),
            args=["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"],
        )
        context = await browser.new_context(
            timezone_id="UTC",
            locale="en-GB",
            color_scheme="light",
            reduced_motion="reduce",
            bypass_csp=True,
            device_scale_factor=SCALE,
        )
        page = await context.new_page()
        for name, (path, height) in pages.items():
            await page.set_viewport_size({"width": WIDTH, "height": height})
            await page.goto(url + path)
            await page.add_style_tag(content=FONT)
            await _wait_until_drawn(page)
            file = folder / f"dashboard-{name}.png"
            await page.screenshot(path=file)
        await browser.close()


async def _wait_until_drawn(page: Page) -> None:
    await page.wait_for_selector("main h1")
    await page.wait_for_function(READY, timeout=60_000)
    # The first answers bring more components, which ask in turn.
    await page.wait_for_load_state("networkidle", timeout=60_000)
    await page.wait_for_function(READY, timeout=60_000)
    await page.wait_for_timeout(500)


def pack(pictures: list[Path]) -> None:
    """Fewer colours, which nobody sees, make the files small."""
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext", ".png", "--quality", "85-98", "--strip", *pictures], check=True)
    for picture in pictures:
        print(f"{picture}: {picture.stat().st_size // 1000} KB")


if __name__ == "__main__":
    images = Path(sys.argv[1])
    images.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_pictures(images))
    pack(sorted(images.glob("dashboard-*.png")))
