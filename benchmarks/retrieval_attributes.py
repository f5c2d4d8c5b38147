"""What the benchmark of recall asks about a country: 30 attributes and 6 relations.

The world asks about 12 attributes under short names, which a small policy can spell.  These are
worded as people ask ("the name of the head of government of Chad"), and read from the same
profiles.  A field that does not parse gives no fact.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from turncredit.worlds.factbook import facts
from turncredit.worlds.factbook.profiles import Profile, text_at

Read = Callable[[Profile, tuple[str, ...]], list[str]]


@dataclass(frozen=True)
class Attribute:
    """Something that a profile says, as it is asked for."""

    phrase: str
    """'largest import partner'; '{}' stands where the country goes if not after 'of'."""
    short: str
    """As an agent would search for it: 'head of government'."""
    path: tuple[str, ...]
    """Section, field and its parts, where the profile holds the value."""
    read: Read

    def of(self, country: str) -> str:
        """'the largest import partner of Chad'."""
        said = self.phrase if "{}" in self.phrase else self.phrase + " of {}"
        return "the " + said.format(country)

    def value(self, profile: Profile) -> str | None:
        """What the profile says; None where it does not, or not clearly."""
        found = self.read(profile, self.path)
        return found[0] if found else None


def by_world(read: Callable[[Profile], list[str]]) -> Read:
    """Reads as the Factbook world does."""
    return lambda profile, path: read(profile)


def match(pattern: str) -> Read:
    """Reads the first group of `pattern`, matched from the beginning of the text."""

    def read(profile: Profile, path: tuple[str, ...]) -> list[str]:
        found = re.match(pattern, text_at(profile, *path))
        value = found.group(1).strip(" \"'“”‘’*") if found else ""
        return [] if value in ("", "none", "NA", "other") else [value]

    return read


def person(office: str = "") -> Read:
    """Reads the holder of an office that the text begins with, without titles; [] if vacant."""
    named = match(office + r"([^\W\d][^;,()]*?) *\(since")

    def read(profile: Profile, path: tuple[str, ...]) -> list[str]:
        holders = [_OFFICE.sub("", name) for name in named(profile, path)]
        return [name for name in holders if " " in name]

    return read


def language(profile: Profile, path: tuple[str, ...]) -> list[str]:
    """Language listed first; some profiles hold the list one level lower."""
    read = match(_LISTED)
    return read(profile, (*path, "Languages")) or read(profile, path)


def largest_lake(profile: Profile, path: tuple[str, ...]) -> list[str]:
    """Largest of the fresh-water and salt-water lakes."""
    texts = (text_at(profile, *path, f"{kind} water lake(s)") for kind in ("fresh", "salt"))
    sized = re.findall(r"([^;]+?) - ([\d,]+)", "; ".join(texts))
    lakes = [(float(size.replace(",", "")), name) for name, size in sized]
    return [re.sub(r" *\(.*", "", max(lakes)[1]).strip(" *")] if lakes else []


def shortest_border(profile: Profile, path: tuple[str, ...]) -> list[str]:
    """Neighbour with the shortest common border; [] on a tie, or if there is only one."""
    borders = re.findall(r"([^;]+?) ([\d,.]*\d) km", text_at(profile, *path))
    ranked = sorted((float(length.replace(",", "")), name.strip()) for name, length in borders)
    if len(ranked) < 2 or ranked[0][0] == ranked[1][0]:
        return []
    return [re.sub(r" *\(.*?\)", "", ranked[0][1])]


_LISTED = r"([^\W\d][^\d,;:(]*?)(?: only)?(?= *[\d,;:(<~]|$)"
"""First of a list, where shares or remarks may follow."""

_NAME = r"([^\W\d][^;,(]*?) *(?:[;,(]|$)"
"""Up to the first bracket or comma."""

_OFFICE = re.compile(
    r"^(?:(?:Acting|Interim|Transitional|Transition|Vice|Deputy|Prime|First|Chief|Federal|State"
    r"|President|Minister|Ministers|Premier|Chancellor|King|Queen|Emir|Amir|Sultan|Pope|Prince"
    r"|Grand|Duke|Governor|General|Governor-General|Ambassador|Administrator|Captain|Sir|Dame"
    r"|Lieutenant|Sheikh|Shaykh|Council|Cabinet|Government|Republic|Chairman|Chairperson"
    r"|Commissioner|High|Head|of|the|and)\s+)+"
)

_GOVERNMENT, _ECONOMY, _SOCIETY = "Government", "Economy", "People and Society"
_EXECUTIVE = (_GOVERNMENT, "Executive branch")
_HOLIDAY = (_GOVERNMENT, "National holiday")
_BORDERS = ("Geography", "Land boundaries", "border countries")

ATTRIBUTES = tuple(
    Attribute(phrase, short or phrase, path, read)
    for phrase, short, path, read in (
        ("capital", "", (_GOVERNMENT, "Capital", "name"), by_world(facts.capital)),
        (
            "largest city",
            "",
            (_SOCIETY, "Major urban areas - population"),
            by_world(facts.largest_city),
        ),
        ("currency", "", (_ECONOMY, "Exchange rates", "Currency"), match(_NAME)),
        (
            "internet country code",
            "",
            ("Communications", "Internet country code"),
            by_world(facts.internet_code),
        ),
        (
            "aircraft registration prefix",
            "",
            ("Transportation", "Civil aircraft registration country code prefix"),
            match(r"(\w+)$"),
        ),
        (
            "highest point",
            "",
            ("Geography", "Elevation", "highest point"),
            by_world(facts.highest_point),
        ),
        (
            "lowest point",
            "",
            ("Geography", "Elevation", "lowest point"),
            match(r"([^\W\d][^\d(/]*?) *(?:\(| -?\d)"),
        ),
        (
            "longest major river",
            "longest river",
            ("Geography", "Major rivers (by length in km)"),
            by_world(facts.longest_river),
        ),
        ("largest lake", "", ("Geography", "Major lakes (area sq km)"), largest_lake),
        ("government type", "", (_GOVERNMENT, "Government type"), match(_NAME)),
        (
            "legislature",
            "",
            (_GOVERNMENT, "Legislative branch", "legislature name"),
            match(_NAME),
        ),
        (
            "highest court",
            "",
            (_GOVERNMENT, "Judicial branch", "highest court(s)"),
            match(r"([^\W\d][^;,(]*?)(?: or [^;,(]*)? *[;,(]"),
        ),
        (
            "name of the head of government",
            "head of government",
            (*_EXECUTIVE, "head of government"),
            person(),
        ),
        ("name of the chief of state", "chief of state", (*_EXECUTIVE, "chief of state"), person()),
        (
            "name of the ambassador to the United States",
            "ambassador to the US",
            (_GOVERNMENT, "Diplomatic representation in the US", "chief of mission"),
            person("Ambassador "),
        ),
        (
            "name of the US ambassador to {}",
            "US ambassador",
            (_GOVERNMENT, "Diplomatic representation from the US", "chief of mission"),
            person("Ambassador "),
        ),
        (
            "title of the national anthem",
            "national anthem",
            (_GOVERNMENT, "National anthem(s)", "title"),
            match(r"[\"“]([^\"”]+)[\"”]"),
        ),
        (
            "name of the national holiday",
            "national holiday",
            _HOLIDAY,
            match(r"([^\W\d][^,;(]*?)(?: \([^)]*\))?,[^;]*$"),
        ),
        (
            "day and month of the national holiday",
            "national holiday date",
            _HOLIDAY,
            match(r"[^;]*?, (\d{1,2} [A-Z][a-z]+)(?: \(\d{4}\))?(?:;|$)"),
        ),
        (
            "date of independence",
            "independence date",
            (_GOVERNMENT, "Independence"),
            match(r"(\d{1,2} [A-Z][a-z]+ \d{4})[^;]*$"),
        ),
        ("national symbol", "", (_GOVERNMENT, "National symbol(s)"), match(_NAME)),
        ("voting age", "", (_GOVERNMENT, "Suffrage"), match(r"(\d+) years of age")),
        ("former name", "", (_GOVERNMENT, "Country name", "former"), match(_NAME)),
        ("largest religion", "", (_SOCIETY, "Religions"), match(_LISTED)),
        ("largest ethnic group", "", (_SOCIETY, "Ethnic groups"), match(_LISTED)),
        ("main language", "", (_SOCIETY, "Languages"), language),
        (
            "top export commodity",
            "",
            (_ECONOMY, "Exports - commodities"),
            by_world(facts.top_export_commodity),
        ),
        (
            "top import commodity",
            "",
            (_ECONOMY, "Imports - commodities"),
            match(r"([^\W\d][^,;/]*?),.*\(20\d\d\)$"),
        ),
        (
            "top agricultural product",
            "",
            (_ECONOMY, "Agricultural products"),
            by_world(facts.top_farm_product),
        ),
        ("leading industry", "", (_ECONOMY, "Industries"), match(_NAME)),
    )
)
"""Values of a country that are asked for."""

RELATIONS = tuple(
    Attribute(phrase, short or phrase, path, read)
    for phrase, short, path, read in (
        (
            "largest export partner",
            "",
            (_ECONOMY, "Exports - partners"),
            by_world(facts.top_export_partner),
        ),
        (
            "second-largest export partner",
            "",
            (_ECONOMY, "Exports - partners"),
            by_world(facts.second_export_partner),
        ),
        (
            "largest import partner",
            "",
            (_ECONOMY, "Imports - partners"),
            by_world(facts.top_import_partner),
        ),
        (
            "country sharing the longest land border with {}",
            "longest land border",
            _BORDERS,
            by_world(facts.longest_land_border),
        ),
        (
            "country sharing the shortest land border with {}",
            "shortest land border",
            _BORDERS,
            shortest_border,
        ),
        (
            "former ruler",
            "",
            (_GOVERNMENT, "Independence"),
            match(r"[^;(]*\(from (?:the )?([^;)]+)\)[^;]*$"),
        ),
    )
)
"""Values that are countries themselves, so that a question can hop."""

DESCRIBING = (
    "capital",
    "internet country code",
    "aircraft registration prefix",
    "highest point",
    "longest major river",
    "legislature",
    "name of the head of government",
    "name of the chief of state",
    "title of the national anthem",
)
"""Phrases of the attributes whose value can stand for a country, where no other shares it."""
