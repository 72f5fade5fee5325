"""Times that were noted per host or lane, in flat memory over any number of them."""

from __future__ import annotations

MOST = 10_000


class Remembered(dict[str, float]):
    """A dict that forgets its oldest half when it gets too long. Whoever asks must be able to find out again."""

    def __setitem__(self, key: str, value: float) -> None:
        if len(self) >= MOST and key not in self:
            for old in list(self)[: MOST // 2]:
                del self[old]
        super().__setitem__(key, value)
