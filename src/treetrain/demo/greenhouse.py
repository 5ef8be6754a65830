"""The world of the built-in example: a greenhouse with benches, trays, a store and nine tools.

Everything follows from a seed. This file knows what the tools do; `agent` decides which to call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

T = TypeVar("T")
Json = dict[str, object]


@dataclass(frozen=True)
class Plant:
    """What the greenhouse's handbook says of a plant.

    Attributes:
        name: its name.
        moisture: lowest and highest soil moisture it likes, per cent.
        min_temperature: coldest night it bears, degrees Celsius.
        spacing: distance between plants, centimetres.
        days_to_sprout: days from sowing to the first leaves.
        pest: what it suffers from most.
        remedy: what helps against it.
    """

    name: str
    moisture: tuple[int, int]
    min_temperature: int
    spacing: int
    days_to_sprout: int
    pest: str
    remedy: str


PLANTS = (
    Plant("basil", (45, 60), 12, 20, 6, "aphids", "soap spray"),
    Plant("tomato", (50, 70), 10, 45, 7, "whitefly", "yellow cards"),
    Plant("chili", (40, 60), 13, 35, 10, "spider mites", "predatory mites"),
    Plant("lettuce", (55, 75), 2, 25, 5, "slugs", "copper tape"),
    Plant("lavender", (15, 30), -5, 30, 18, "froghoppers", "water jet"),
    Plant("lemon tree", (35, 50), 5, 150, 21, "scale insects", "neem oil"),
    Plant("orchid", (30, 45), 15, 15, 60, "mealybugs", "alcohol swabs"),
    Plant("rosemary", (20, 35), -3, 40, 15, "leafhoppers", "garlic spray"),
)
REMEDIES = tuple(plant.remedy for plant in PLANTS)


def _tool(name: str, description: str, **parameters: tuple[str, str]) -> Json:
    properties = {
        key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()
    }
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
            },
        },
    }


TOOLS: tuple[Json, ...] = (
    _tool("list_benches", "Lists every bench with the plant that grows on it."),
    _tool(
        "read_sensor",
        "Reads one sensor of a bench.",
        bench=("integer", "number of the bench"),
        kind=("string", "moisture, temperature or light"),
    ),
    _tool(
        "look_up_plant",
        "Opens the handbook's page of a plant.",
        plant=("string", "name of the plant"),
    ),
    _tool(
        "inspect_leaves",
        "Takes a close picture of the leaves on a bench and says what is on them.",
        bench=("integer", "number of the bench"),
    ),
    _tool(
        "water",
        "Waters a bench. One litre raises the moisture by about eight points.",
        bench=("integer", "number of the bench"),
        litres=("integer", "how much water"),
    ),
    _tool(
        "treat",
        "Uses a remedy from the store on a bench.",
        bench=("integer", "number of the bench"),
        remedy=("string", "name of the remedy"),
    ),
    _tool(
        "check_stock",
        "Counts how many of an item lie in the store.",
        item=("string", "name of the item"),
    ),
    _tool(
        "move_tray",
        "Moves the plant of a bench to the heated room or back.",
        bench=("integer", "number of the bench"),
        room=("string", "heated or cool"),
    ),
    _tool("forecast", "Gives tonight's weather outside."),
)


@dataclass
class Bench:
    """One bench: its plant and what its sensors show.

    Attributes:
        plant: the plant that grows on it.
        moisture: soil moisture, per cent.
        temperature: degrees Celsius.
        light: lux, in hundreds.
        sick: whether the plant's pest sits on the leaves.
        room: "cool" or "heated".
    """

    plant: Plant
    moisture: int
    temperature: int
    light: int
    sick: bool = False
    room: str = "cool"

    @property
    def sensors(self) -> dict[str, int]:
        """What each kind of sensor shows."""
        return {
            "moisture": self.moisture,
            "temperature": self.temperature,
            "light": self.light,
        }


@dataclass
class Greenhouse:
    """The state that the tools read and change.

    Attributes:
        benches: bench number to bench.
        stock: item to count.
        night: tonight's lowest temperature, degrees Celsius.
    """

    benches: dict[int, Bench]
    stock: dict[str, int] = field(default_factory=lambda: {})
    night: int = 0

    def call(self, tool: str, arguments: Json) -> Json:
        """Runs one tool.

        Args:
            tool: its name.
            arguments: its arguments by name.

        Returns:
            What the agent reads as the tool's answer.

        Raises:
            ValueError: no tool has that name, or there is nothing in the greenhouse that its
                arguments name.
        """
        try:
            return self._run(tool, arguments)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"tool and arguments must name what the greenhouse has, got {tool!r} with "
                f"{arguments!r}"
            ) from error

    def _run(self, tool: str, arguments: Json) -> Json:
        if tool == "list_benches":
            return {f"bench {n}": b.plant.name for n, b in self.benches.items()}
        if tool == "forecast":
            return {"night_low": self.night, "unit": "C", "frost": self.night <= 0}
        if tool == "check_stock":
            item = str(arguments["item"])
            return {"item": item, "count": self.stock[item]}
        if tool == "look_up_plant":
            return self._handbook(str(arguments["plant"]))
        bench = self.benches[int(str(arguments["bench"]))]
        if tool == "read_sensor":
            kind = str(arguments["kind"])
            return {"bench": arguments["bench"], kind: bench.sensors[kind]}
        if tool == "inspect_leaves":
            found = bench.plant.pest if bench.sick else "nothing"
            return {"bench": arguments["bench"], "plant": bench.plant.name, "found": found}
        if tool == "water":
            bench.moisture = min(95, bench.moisture + 8 * int(str(arguments["litres"])))
            return {"bench": arguments["bench"], "done": True}
        if tool == "treat":
            return self._treat(bench, str(arguments["remedy"]))
        if tool == "move_tray":
            bench.room = {"heated": "heated", "cool": "cool"}[str(arguments["room"])]
            return {"bench": arguments["bench"], "room": bench.room}
        raise KeyError(tool)

    def _handbook(self, name: str) -> Json:
        plant = {p.name: p for p in PLANTS}[name]
        low, high = plant.moisture
        return {
            "plant": name,
            "moisture": f"{low} to {high}",
            "coldest_night": plant.min_temperature,
            "spacing_cm": plant.spacing,
            "days_to_sprout": plant.days_to_sprout,
            "pest": plant.pest,
            "remedy": plant.remedy,
        }

    def _treat(self, bench: Bench, remedy: str) -> Json:
        left = self.stock.get(remedy, 0)
        if left == 0:
            return {"error": f"no {remedy} in the store"}
        self.stock[remedy] = left - 1
        bench.sick = bench.sick and remedy != bench.plant.remedy
        return {"remedy": remedy, "done": True, "left": left - 1}


def pick(random: Random, choices: Sequence[T]) -> T:
    """Picks one of several; unlike `Random.choice` the same in every Python release.

    Args:
        random: source of chance.
        choices: at least one.

    Returns:
        One of them.
    """
    return choices[int(random.random() * len(choices))]


def draw_greenhouse(random: Random) -> Greenhouse:
    """Draws a greenhouse with eight benches.

    Args:
        random: source of chance.

    Returns:
        Its state before anybody has touched it.
    """
    plants = sorted(PLANTS, key=lambda plant: (random.random(), plant.name))
    benches = {
        number: Bench(
            plant,
            moisture=plant.moisture[0] + int(random.random() * 12),
            temperature=16 + int(random.random() * 8),
            light=20 + int(random.random() * 300),
        )
        for number, plant in enumerate(plants, start=1)
    }
    stock = {remedy: int(random.random() * 4) for remedy in REMEDIES}
    return Greenhouse(benches, stock, night=int(random.random() * 14) - 4)
