"""What stands in rooms, what lies where, and what can be done to it: a small part of a house."""

ROOMS = {
    "kitchen": "countertop diningtable cabinet drawer fridge microwave sinkbasin".split(),
    "livingroom": "sofa coffeetable armchair sidetable drawer shelf".split(),
    "bedroom": "bed desk drawer dresser shelf sidetable".split(),
    "bathroom": "countertop cabinet sinkbasin toilet shelf garbagecan".split(),
}
"""Kinds of receptacles by kind of room."""
OPENABLE = frozenset("cabinet drawer fridge microwave".split())
SEVERAL = frozenset("countertop cabinet drawer shelf sidetable".split())
"""Kinds of which a room may have more than one."""

_FOOD = "apple bread egg potato tomato"
_DISHES = "bowl cup mug plate"
_CUTLERY = "fork knife spoon"
_PAPERS = "book creditcard keychain newspaper pen watch"
_WASHING = "cloth soapbar soapbottle"
HOLDS = {
    "countertop": f"{_FOOD} {_DISHES} {_CUTLERY} {_WASHING}",
    "diningtable": f"{_FOOD} {_DISHES} {_CUTLERY} {_PAPERS}",
    "cabinet": f"{_DISHES} soapbar soapbottle",
    "drawer": f"{_CUTLERY} {_PAPERS} {_WASHING}",
    "fridge": f"{_FOOD} {_DISHES}",
    "microwave": f"{_FOOD} {_DISHES}",
    "sinkbasin": f"apple egg potato tomato {_DISHES} {_CUTLERY} cloth soapbar",
    "sofa": "book creditcard keychain newspaper pillow",
    "coffeetable": f"{_PAPERS} {_DISHES}",
    "armchair": "book creditcard keychain newspaper pillow",
    "sidetable": f"{_PAPERS} {_DISHES}",
    "shelf": f"{_PAPERS} {_DISHES} soapbar soapbottle",
    "bed": "book newspaper pillow",
    "desk": f"{_PAPERS} {_DISHES}",
    "dresser": f"{_PAPERS} {_DISHES}",
    "toilet": "cloth soapbar soapbottle",
    "garbagecan": "cloth soapbar soapbottle",
}
"""Kinds of objects that a kind of receptacle may hold, as one text."""
FOUND_IN = {
    "kitchen": f"{_FOOD} {_DISHES} {_CUTLERY}".split(),
    "livingroom": f"{_PAPERS} pillow bowl plate".split(),
    "bedroom": f"{_PAPERS} pillow mug bowl".split(),
    "bathroom": _WASHING.split(),
}
"""Kinds of objects by kind of room."""
TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""The receptacle that changes an object, by what it does."""
CHANGEABLE = {
    "clean": frozenset(f"apple egg potato tomato {_DISHES} {_CUTLERY} cloth soapbar".split()),
    "heat": frozenset(f"{_FOOD} cup mug plate".split()),
    "cool": frozenset(f"{_FOOD} {_DISHES}".split()),
}
"""Kinds of objects that can be changed so."""
SLICEABLE = frozenset(_FOOD.split())
VESSELS = frozenset(_DISHES.split())
"""Objects that other objects could lie in; here none ever does."""
LAMP = "desklamp"
LAMP_STANDS_ON = ("desk", "sidetable", "dresser")
ODD = frozenset(
    [("cloth", "toilet"), ("pillow", "drawer"), ("book", "toilet"), ("soapbar", "garbagecan")]
)
"""(object, receptacle) pairs that nobody would ask for."""


def holds(receptacle: str, thing: str) -> bool:
    """Whether a kind of receptacle may hold a kind of object.

    >>> holds("fridge", "apple"), holds("fridge", "book")
    (True, False)
    """
    return thing in HOLDS[receptacle].split()


def kind_of(name: str) -> str:
    """The kind of a numbered thing.

    >>> kind_of("drawer 2")
    'drawer'
    """
    return name.rpartition(" ")[0]
