"""Links of a developer to other platforms: from the social accounts that GitHub lists, the blog and the bio."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

# A platform by its hosts; a host also stands for those below it.
PLATFORMS = {
    "twitter": ("twitter.com", "x.com"),
    "linkedin": ("linkedin.com",),
    "facebook": ("facebook.com", "fb.com"),
    "instagram": ("instagram.com",),
    "telegram": ("t.me", "telegram.me"),
    "youtube": ("youtube.com", "youtu.be"),
    "medium": ("medium.com",),
    "dev_to": ("dev.to",),
    "hashnode": ("hashnode.com", "hashnode.dev"),
    "stackoverflow": ("stackoverflow.com",),
}
_HOSTS = "|".join(re.escape(host) for hosts in PLATFORMS.values() for host in hosts)
_IN_TEXT = re.compile(rf"https?://[^\s<>\"')\]]+|(?<![\w.@/-])(?:[\w-]+\.)*(?:{_HOSTS})/[^\s<>\"')\],]+", re.IGNORECASE)


def platform_of(url: str) -> str | None:
    """The platform of a URL; None for any other site."""
    host = (urlsplit(url).hostname or "").lower()
    for platform, hosts in PLATFORMS.items():
        if any(host == known or host.endswith("." + known) for known in hosts):
            return platform
    return None


def social_links(accounts: list[dict], twitter: str | None, blog: str | None, bio: str | None) -> Iterator[dict]:
    """One link for each platform, and `other_1`, `other_2` ... for other sites.

    `verified`: the developer gave it to GitHub as an account. Those found in the blog or in the bio are not.
    """
    found: dict[str, dict] = {}
    others: set[str] = set()
    stated = [account["url"] for account in accounts]
    stated += [f"https://twitter.com/{twitter}"] if twitter else []
    mentioned = [blog, *_IN_TEXT.findall(bio or "")] if blog else _IN_TEXT.findall(bio or "")
    for verified, urls in ((True, stated), (False, mentioned)):
        for url in filter(None, map(absolute, urls)):
            platform = platform_of(url)
            if platform is None:
                if (site := url.removesuffix("/")) in others:
                    continue
                others.add(site)
                platform = f"other_{len(others)}"
            found.setdefault(platform, {"platform": platform, "url": url, "verified": verified})
    yield from found.values()


def absolute(url: str) -> str | None:
    """A link as people type it, with its scheme; None for what is no address of a page, such as a mail address."""
    url = url.strip().rstrip(".,;")
    if not re.match(r"https?://", url, re.IGNORECASE):
        url = f"https://{url}"
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return url if "." in (parts.hostname or "") and not parts.username and " " not in url else None
