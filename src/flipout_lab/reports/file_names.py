"""File names and page addresses made from titles."""

from __future__ import annotations


def slug(title: str) -> str:
    """A title in lower case with a hyphen between words, for an address or a file name."""
    words = "".join(character if character.isalnum() else " " for character in title.lower()).split()
    return "-".join(words)


class UniqueNames:
    """Make names from titles, each name at most once.

    Different titles can have the same slug: "+noise" and "-noise" are both "noise". The second one gets a suffix.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def reserve(self, *titles: str) -> str:
        """The slugs of these titles, joined by a hyphen, with a number at the end if that name is taken."""
        wanted = "-".join(filter(None, map(slug, titles))) or "unnamed"
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}-{number}"
        self._taken.add(name)
        return name
