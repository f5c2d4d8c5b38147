"""Short non-numeric facts read out of the profiles; what does not parse cleanly is left out."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turncredit.answers import words
from turncredit.worlds.factbook.profiles import (
    Profile,
    country_aliases,
    load_profiles,
    name_key,
    text_at,
    title_index,
    without_accents,
)

PARSER_VERSION = 1
LONGEST_ANSWER = 3
"""Words in an answer, at most."""

RELATIONS = (
    "top export partner",
    "second export partner",
    "top import partner",
    "longest land border",
)
"""Attributes whose value is another document's title, so that a question can hop."""

_NAME = re.compile(r"[A-Z][^\W\d]*(?:[ .'-]+[^\W\d]+){0,2}")
_REGION_OF_PEAK = frozenset({"Tenerife", "South Georgia"})
"""In brackets after a highest point, but where it is and not what it is called."""
_LARGE_CITY = 750_000
"""Above it the Factbook lists every urban area; below it only the capital, largest or not."""


@dataclass(frozen=True)
class Fact:
    """In document `title`, the paragraph on `relation` says `value`."""

    title: str
    relation: str
    value: str
    aliases: tuple[str, ...]
    target: str | None
    """Title of the document that the value leads to, for the attributes in `RELATIONS`."""

    @property
    def paragraph(self) -> str:
        """The fact as its document holds it."""
        return f"{self.title} {self.relation}: {self.value}"


def capital(profile: Profile) -> list[str]:
    """Capital and its other spellings; [] where there are several capitals, or none."""
    text = text_at(profile, "Government", "Capital", "name")
    if text == "Washington, D.C.":
        return ["Washington", text]
    if re.search(r"[;,/]|capital\b| in |\bofficial\b|administered", re.sub(r"\(.*?\)", "", text)):
        return []
    return [] if "capital)" in text else _name_and_aliases(text)


def largest_city(profile: Profile) -> list[str]:
    """Most populous urban area, if the profile lists all large ones; spelled as the capital is."""
    text = text_at(profile, "People and Society", "Major urban areas - population")
    cities = []
    for number, million, name in re.findall(r"(\d[\d,.]*) (million )?([^\d(,;]+)", text):
        # "872,000 million" (Saudi Arabia) is a slip: a number with a comma is never in millions.
        in_millions = million and "," not in number
        size = float(number.replace(",", "").rstrip(".")) * (1e6 if in_millions else 1)
        cities.append((size, name.strip()))
    name = _largest(cities, at_least=_LARGE_CITY)
    if name is None:
        return []
    for seat in capital(profile):
        if words(without_accents(seat)) == words(without_accents(name)):
            return capital(profile)
    return [name.title() if name.isupper() else name]


def currency_code(profile: Profile) -> list[str]:
    """ISO 4217 style code, as the Factbook prints it (some are superseded)."""
    text = text_at(profile, "Economy", "Exchange rates", "Currency")
    codes = set(re.findall(r"\(([A-Z]{3})\)", text))
    return sorted(codes) if len(codes) == 1 else []


def internet_code(profile: Profile) -> list[str]:
    """Top-level domain with its dot; [] where there are several."""
    codes = re.findall(r"\.[a-z]{2}\b", text_at(profile, "Communications", "Internet country code"))
    return codes if len(codes) == 1 else []


def highest_point(profile: Profile) -> list[str]:
    """Named highest point without 'on', 'at' and what follows; [] if unnamed or one of several."""
    text = text_at(profile, "Geography", "Elevation", "highest point")
    text = re.sub(r" *\([^A-Z)][^)]*\)", "", text)  # remarks, which hold words such as 'on' too
    outside = re.sub(r"\(.*?\)", "", text)
    if re.search(r"unnamed|location|[;/]|range| and |, [A-Z]", outside):
        return []
    name = re.match(r"(.+?),? -?\d[\d,.]*( m\b|$)", text)
    if name is None:
        return []
    return _name_and_aliases(re.split(r" (?:on|at|of the) ", name.group(1))[0])


def longest_river(profile: Profile) -> list[str]:
    """Longest of the major rivers, by its English name where the profile gives one in brackets."""
    text = text_at(profile, "Geography", "Major rivers (by length in km)")
    rivers = []
    for entry, length in re.findall(r"([^;]+?) - ([\d,]+) km", text):
        name = re.split(r"\(shared| river\b", entry)[0].strip()
        rivers.append((float(length.replace(",", "")), name))
    name = _largest(rivers)
    if name is None or "/" in name:
        return []
    return _name_and_aliases(name)[::-1]


def top_export_commodity(profile: Profile) -> list[str]:
    """First of the export commodities that are ranked by value."""
    return _first_ranked(text_at(profile, "Economy", "Exports - commodities"))


def top_farm_product(profile: Profile) -> list[str]:
    """First of the agricultural products that are ranked by tonnage."""
    return _first_ranked(text_at(profile, "Economy", "Agricultural products"))


def top_export_partner(profile: Profile) -> list[str]:
    """Largest buyer; [] on a tie."""
    return _partner(text_at(profile, "Economy", "Exports - partners"), rank=0)


def second_export_partner(profile: Profile) -> list[str]:
    """Second-largest buyer; [] if it ties with the first or the third."""
    return _partner(text_at(profile, "Economy", "Exports - partners"), rank=1)


def top_import_partner(profile: Profile) -> list[str]:
    """Largest supplier; [] on a tie."""
    return _partner(text_at(profile, "Economy", "Imports - partners"), rank=0)


def longest_land_border(profile: Profile) -> list[str]:
    """Neighbour with the longest common border; [] on a tie."""
    text = text_at(profile, "Geography", "Land boundaries", "border countries")
    borders = re.findall(r"([^;]+?) ([\d,.]*\d) km", text)
    name = _largest([(float(length.replace(",", "")), name.strip()) for name, length in borders])
    return [] if name is None else [re.sub(r" *\(.*?\)", "", name)]


ATTRIBUTES: dict[str, Callable[[Profile], list[str]]] = {
    "capital": capital,
    "largest city": largest_city,
    "currency code": currency_code,
    "internet code": internet_code,
    "highest point": highest_point,
    "longest river": longest_river,
    "top export commodity": top_export_commodity,
    "top farm product": top_farm_product,
    "top export partner": top_export_partner,
    "second export partner": second_export_partner,
    "top import partner": top_import_partner,
    "longest land border": longest_land_border,
}
"""What a document says about a country, in this order, and how it is read from the profile."""


def load_facts(attributes: Sequence[str] = tuple(ATTRIBUTES)) -> list[Fact]:
    """All facts on the given attributes, ordered by title and then as in `attributes`.

    Raises ValueError naming an attribute that is not in `ATTRIBUTES` or comes twice.
    """
    for name in attributes:
        if name not in ATTRIBUTES or list(attributes).count(name) > 1:
            known = ", ".join(ATTRIBUTES)
            raise ValueError(f"attributes: {name!r} is unknown or repeated; known: {known}")
    profiles = load_profiles()
    titles, aliases = title_index(profiles), country_aliases(profiles)
    facts = []
    for title, profile in profiles.items():
        for relation in attributes:
            fact = _fact(title, relation, ATTRIBUTES[relation](profile), titles, aliases)
            facts += [fact] if fact is not None else []
    return facts


def _fact(
    title: str,
    relation: str,
    names: list[str],
    titles: Mapping[str, str],
    aliases: Mapping[str, tuple[str, ...]],
) -> Fact | None:
    """The fact, or None if the value is too long, holds a digit or leads out of the corpus."""
    target = None
    if relation in RELATIONS:
        target = titles.get(name_key(names[0])) if names else None
        names = [target, *aliases[target]] if target not in (None, title) else []
    if not names or not 1 <= len(words(names[0])) <= LONGEST_ANSWER or re.search(r"\d", names[0]):
        return None
    # other alphabets keep their marks, which are letters there
    plain = [bare for name in names if (bare := without_accents(name)).isascii()]
    others = {" ".join(words(name)): name for name in (*names, *plain) if len(name) > 3}
    others.pop(" ".join(words(names[0])), None)
    return Fact(title, relation, names[0], tuple(others.values()), target)


def _largest(items: list[tuple[float, str]], at_least: float = 0.0) -> str | None:
    """Name of the strictly largest item, None on a tie or if nothing reaches `at_least`."""
    ranked = sorted(items, reverse=True)
    if not ranked or ranked[0][0] < at_least:
        return None
    return None if len(ranked) > 1 and ranked[0][0] == ranked[1][0] else ranked[0][1]


def _partner(text: str, *, rank: int) -> list[str]:
    """Name at `rank` in 'Germany 19%, Italy 8%, ...'; [] if another one has the same share."""
    found = re.findall(r"(?:^|%,? ?)([^%]+?) (?=(\d+(?:\.\d+)?)%)", text)
    shares = [float(share) for _, share in found]
    if rank >= len(found) or shares.count(shares[rank]) > 1:
        return []
    if shares != sorted(shares, reverse=True):
        return []
    name = found[rank][0]
    return [" ".join(reversed(name.split(", ")))] if ", " in name else [name]


def _first_ranked(text: str) -> list[str]:
    """First item of a list that ends in its year; unranked lists have no year."""
    if not re.search(r"\(20\d\d\)$", text):
        return []
    first = re.sub(r" \(20\d\d\)$", "", text).split(",")[0].strip()
    return [] if re.search(r"[/;]| and ", first) or first in ("", "none") else [first]


def _name_and_aliases(text: str) -> list[str]:
    """'Hanoi (Ha Noi)' to ['Hanoi', 'Ha Noi']; remarks in brackets are dropped."""
    names = [" ".join(re.sub(r"\(.*?\)", "", text).split())]
    if not names[0][:1].isupper():
        return []
    for bracket in re.findall(r"\((.*?)\)", text):
        for name in re.split(r"[,/] ?", bracket):
            if _NAME.fullmatch(name) and name not in _REGION_OF_PEAK:
                names.append(name)
    return names
