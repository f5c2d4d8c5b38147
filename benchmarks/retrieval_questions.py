"""Questions of the benchmark of recall: facts of the whole Factbook, alone and in chains.

Kinds: one hop; two hops over two countries; three hops, which begin at a named country, at a
described one ("the country whose capital is Niamey") or at a chemical element; and sub-queries
("Chad currency"), as an agent searches for one hop.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from retrieval_attributes import ATTRIBUTES, DESCRIBING, RELATIONS, Attribute

from turncredit.seeding import python_stream
from turncredit.worlds.factbook.profiles import load_profiles, name_key, title_index

SHARES = {"1 hop": 80, "2 hops": 70, "3 hops": 50, "sub-query": 200}
"""Questions of each kind in the reference."""

DISCOVERED_IN = Attribute("country where the element {} was discovered", "discovery", (), None)
_COUNTRY_OF = {"England": "United Kingdom"}


@dataclass(frozen=True)
class Fact:
    """The document `title` says `value`."""

    title: str
    attribute: Attribute
    value: str
    target: str | None = None
    """Title of the country that the value leads to, for relations."""

    @property
    def field(self) -> str:
        """What stands before the value in its document."""
        return self.attribute.path[1] if self.attribute.path else "Discovery location"


@dataclass(frozen=True)
class Asked:
    """A query and the facts it leads along, first to last."""

    query: str
    facts: tuple[Fact, ...]


def load_facts() -> list[Fact]:
    """Facts on all attributes and relations, in the order of the profiles.

    Relations that lead to no country of the corpus, or back to their own, are left out.
    """
    profiles = load_profiles()
    titles = title_index(profiles)
    found = []
    for title, profile in profiles.items():
        for attribute in (*ATTRIBUTES, *RELATIONS):
            value = attribute.value(profile)
            if value is None:
                continue
            target = titles.get(name_key(value)) if attribute in RELATIONS else None
            if attribute in ATTRIBUTES or target not in (None, title):
                found.append(Fact(title, attribute, value, target))
    return found


def discoveries(places: Mapping[str, str], facts: Sequence[Fact]) -> list[Fact]:
    """From elements to the one country of their discovery; `places` by the element's name."""
    titles = {fact.title for fact in facts}
    leads = {name: _COUNTRY_OF.get(place, place) for name, place in places.items()}
    return [
        Fact(name, DISCOVERED_IN, places[name], target)
        for name, target in leads.items()
        if target in titles
    ]


def describing(facts: Sequence[Fact]) -> dict[str, list[Fact]]:
    """By country, its facts on an attribute in `DESCRIBING` whose value no other country has."""
    usable = [fact for fact in facts if fact.attribute.phrase in DESCRIBING]
    shared = Counter((fact.attribute, fact.value) for fact in usable)
    by_title = defaultdict(list)
    for fact in usable:
        if shared[fact.attribute, fact.value] == 1:
            by_title[fact.title].append(fact)
    return by_title


def chains(starts: Sequence[Fact], facts: Sequence[Fact], hops: int) -> Iterator[tuple[Fact, ...]]:
    """Chains of `hops` facts: one of `starts`, then each about the country before, none twice."""
    by_title: Mapping[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_title[fact.title].append(fact)
    found = [(fact,) for fact in starts]
    for _ in range(hops - 1):
        found = [
            (*chain, fact)
            for chain in found
            if chain[-1].target not in {None, *(fact.title for fact in chain)}
            for fact in by_title[chain[-1].target]
        ]
    yield from found


def question(chain: Sequence[Fact], start: str) -> str:
    """'What is the capital of the largest export partner of Chad?'"""
    said = start
    for fact in chain:
        said = fact.attribute.of(said)
    return f"What is {said}?"


def pools(facts: Sequence[Fact], discovered: Sequence[Fact]) -> dict[str, list[Asked]]:
    """All questions by type."""
    descriptions = describing(facts)
    two = list(chains(facts, facts, 2))
    described = [
        Asked(question(chain, f"the country whose {fact.attribute.short} is {fact.value}"), whole)
        for chain in two
        for fact in descriptions[chain[0].title]
        for whole in [(fact, *chain)]
    ]
    return {
        "1 hop": [plain((fact,)) for fact in facts],
        "2, named": [plain(chain) for chain in two],
        "2, element": [plain(chain) for chain in chains(discovered, facts, 2)],
        "3, described": described,
        "3, named": [plain(chain) for chain in chains(facts, facts, 3)],
        "3, element": [plain(chain) for chain in chains(discovered, facts, 3)],
        "sub-query": [Asked(f"{fact.title} {fact.attribute.short}", (fact,)) for fact in facts],
    }


def plain(chain: tuple[Fact, ...]) -> Asked:
    """The question that begins at the chain's first document."""
    return Asked(question(chain, chain[0].title), chain)


def capped(asked: Sequence[Asked], most: int) -> list[Asked]:
    """At most `most` questions to one final document, drawn with a fixed seed; all for 0."""
    if most == 0:
        return list(asked)
    kept: Counter[str] = Counter()
    found = []
    for each in python_stream(0, "benchmark of recall", "cap").sample(asked, len(asked)):
        kept[each.facts[-1].title] += 1
        if kept[each.facts[-1].title] <= most:
            found.append(each)
    return found


def drawn(types: Mapping[str, Sequence[Asked]], kind: str, count: int, most: int) -> list[Asked]:
    """`count` questions of a kind or type, or all if there are fewer, drawn with a fixed seed.

    Of each type in it, at most `most` end in one document; all for 0.
    """
    names = [kind] if kind in types else [name for name in types if name[:2] == f"{kind[0]},"]
    found = [asked for name in names for asked in capped(types[name], most)]
    stream = python_stream(0, "benchmark of recall", kind)
    return stream.sample(found, min(count, len(found)))
