"""Which platform a link belongs to, and which links of a developer are kept."""

import pytest

from links import absolute, platform_of, social_links


@pytest.mark.parametrize(
    ("url", "platform"),
    [
        ("https://x.com/heron", "twitter"),
        ("https://www.linkedin.com/in/heron", "linkedin"),
        ("https://m.facebook.com/heron", "facebook"),
        ("https://www.instagram.com/heron", "instagram"),
        ("https://t.me/heron", "telegram"),
        ("https://youtu.be/abc", "youtube"),
        ("https://heron.medium.com/", "medium"),
        ("https://dev.to/heron", "dev_to"),
        ("https://heron.hashnode.dev", "hashnode"),
        ("https://stackoverflow.com/users/1/heron", "stackoverflow"),
        ("https://notx.com/heron", None),
        ("https://heron.example", None),
    ],
)
def test_the_platform_of_a_link(url, platform):
    assert platform_of(url) == platform


def test_one_link_for_each_platform_and_stated_ones_first():
    accounts = [{"url": "https://social.example/@heron"}, {"url": "https://twitter.com/stated"}]
    bio = "See https://medium.com/@heron, x.com/mentioned and (dev.to/heron)."
    found = {link["platform"]: link for link in social_links(accounts, "field", "heron.example", bio)}
    assert found["twitter"] == {"platform": "twitter", "url": "https://twitter.com/stated", "verified": True}
    assert found["other_1"]["url"] == "https://social.example/@heron"
    assert found["other_2"] == {"platform": "other_2", "url": "https://heron.example", "verified": False}
    assert found["medium"]["url"] == "https://medium.com/@heron"
    assert found["dev_to"]["url"] == "https://dev.to/heron"
    assert len(found) == 5


def test_a_slash_at_the_end_makes_no_other_site():
    accounts = [{"url": "https://heron.example"}]
    (link,) = social_links(accounts, None, "heron.example/", "See https://heron.example/.")
    assert link == {"platform": "other_1", "url": "https://heron.example", "verified": True}


def test_what_is_no_page():
    assert absolute("me@heron.example") is None
    assert absolute("just words") is None
    assert absolute("heron.example") == "https://heron.example"
    assert list(social_links([], None, None, None)) == []
