"""Prompts whose answers resemble those of earlier ones, for ``bench.history``.

Each family is one task asked for many things in turn. The families of ``"calibration"`` are for
fitting, those of ``"measured"`` for the benchmark.
"""

from __future__ import annotations

from typing import Literal

Half = Literal["calibration", "measured"]

_NAMES = (
    *("Ada Lindqvist", "Bruno Okafor", "Carla Mendes", "Dmitri Volkov", "Elena Rossi"),
    *("Farid Haddad", "Greta Olsen", "Hiro Tanaka", "Ines Duarte", "Jonas Weber"),
    *("Kofi Mensah", "Lena Fischer", "Marco Bianchi", "Nadia Petrova", "Omar Sayed"),
    *("Priya Nair", "Quentin Moreau", "Rosa Jimenez", "Stefan Novak", "Tuulia Korpi"),
)
_CITIES = (
    *("Oslo", "Lagos", "Lisbon", "Kazan", "Turin", "Amman", "Bergen", "Osaka", "Porto", "Bremen"),
    *("Accra", "Leipzig", "Bologna", "Sofia", "Cairo", "Kochi", "Nantes", "Sevilla", "Brno"),
    "Turku",
)
_JOBS = (
    *("nurse", "electrician", "teacher", "cook", "architect", "driver", "librarian", "welder"),
    *("florist", "dentist", "baker", "painter", "plumber", "tailor", "farmer", "clerk", "pilot"),
    *("carpenter", "chemist", "editor"),
)
_THINGS = (
    *("timeout", "retries", "user_name", "page_size", "currency", "log_level", "cache_dir"),
    *("max_items", "locale", "theme", "port", "token", "region", "quality", "speed", "volume"),
    *("margin", "opacity", "padding", "radius"),
)
_DISHES = (
    *("pumpkin soup", "fish curry", "bean chili", "mushroom risotto", "lentil stew", "apple pie"),
    *("potato salad", "onion tart", "rice pudding", "carrot cake", "beef ragout", "pea soup"),
    *("tomato pasta", "egg fried rice", "spinach quiche", "corn bread", "plum jam", "nut loaf"),
    *("leek gratin", "cherry cobbler"),
)


def families(half: Half) -> dict[str, list[str]]:
    """Twenty prompts of each family, by its name."""
    several = range(20)
    if half == "calibration":
        return {
            "letters": [_letter(i) for i in several],
            "queries": [_query(i) for i in several],
            "recipes": [_recipe(i) for i in several],
        }
    return {
        "forms": [_form(i) for i in several],
        "commits": [_commit(i) for i in several],
        "calls": [_call(i) for i in several],
    }


def _form(i: int) -> str:
    return (
        f"Fill in the form for this person: {_NAMES[i]}, {23 + 2 * i} years old, works as a "
        f"{_JOBS[i]} in {_CITIES[i]}.\n\n"
        "Application for membership\nName: \nAge: \nOccupation: \nCity of residence: \n"
        "Member since: 2026\nStatus: active\nI agree that my data are kept for as long as I am a "
        "member: yes\n\nAnswer with the whole form and nothing else."
    )


def _commit(i: int) -> str:
    name = _THINGS[i]
    return (
        "Write a commit message for this change: a short title, an empty line, and a list of what "
        f"changed and why.\n\n--- a/settings.py\n+++ b/settings.py\n@@ -{i + 3},3 +{i + 3},6 @@\n"
        f" def get_{name}(settings):\n-    return settings['{name}']\n"
        f"+    if '{name}' not in settings:\n+        return DEFAULTS['{name}']\n"
        f"+    return settings['{name}']\n"
    )


def _call(i: int) -> str:
    return (
        "You have one tool, described by this JSON schema:\n\n"
        '{"name": "book_table", "parameters": {"type": "object", "properties": {"restaurant_city":'
        ' {"type": "string"}, "guest_name": {"type": "string"}, "number_of_guests": {"type": '
        '"integer"}, "outside": {"type": "boolean"}}, "required": ["restaurant_city", '
        '"guest_name", "number_of_guests", "outside"]}}\n\nAnswer with one JSON object that calls '
        f"it. Book a table in {_CITIES[i]} for {2 + i % 7} people, name {_NAMES[i]}, "
        f"{'outside' if i % 2 else 'inside'}."
    )


def _letter(i: int) -> str:
    return (
        f"Write a short letter from a library to {_NAMES[i]} in {_CITIES[i]}: the book about being "
        f"a {_JOBS[i]} is {3 + i} days overdue. Ask to bring it back and mention the fee of "
        f"{1 + i} euros."
    )


def _query(i: int) -> str:
    return (
        "Write a SQL query for a table people(name, age, city, job) that finds the name and age of "
        f"everyone who works as a {_JOBS[i]} in {_CITIES[i]} and is older than {20 + i}, sorted by "
        "age. Explain each part of the query."
    )


def _recipe(i: int) -> str:
    return (
        f"Write a recipe for {_DISHES[i]} for {2 + i % 5} people, with the headings Ingredients, "
        "Preparation, Time, and one tip at the end."
    )
