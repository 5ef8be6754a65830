"""How the agent of the built-in example acts: a step, a task, and the words it thinks in.

A routine is a generator: it yields an `Act` (what it thought and the tool it calls), receives the
tool's answer, and yields an `Act` without a tool to finish. What varies from trial to trial is
drawn from the trial's own source of chance, so trials of one task go together for some steps and
then part. The routines themselves are in `tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random

from treetrain.demo.goals import Goal
from treetrain.demo.greenhouse import Json, pick

OPENINGS = (
    "First things first.",
    "Let me go step by step.",
    "One thing at a time.",
    "I should not guess here.",
    "What do I know so far?",
    "The answer depends on facts that I can look up.",
    "Before I touch anything I want to be sure.",
)
WORRIES = (
    "Doing too much would harm the roots.",
    "A wrong step now costs a whole tray.",
    "If the reading is off, the next one will show it.",
    "The person will want to know what I did and why.",
    "It may also be nothing at all.",
    "Other benches can wait.",
    "I keep the handbook's numbers in mind.",
    "That is a small step and can be undone.",
)


@dataclass(frozen=True)
class Act:
    """One step of the agent.

    Attributes:
        thinking: what it thought before acting; stripped from history by the chat template.
        text: what it says to the person.
        tool: the tool it calls, or None where it only speaks.
        arguments: the tool's arguments by name.
    """

    thinking: str
    text: str = ""
    tool: str | None = None
    arguments: Json = field(default_factory=lambda: {})


Routine = Generator[Act, Json, None]


@dataclass(frozen=True)
class Task:
    """What a person asks, and the routine that does it.

    Attributes:
        request: the person's words.
        routine: from the trial's source of chance to the steps.
        goal: what the greenhouse must look like when the agent has stopped.
        about: the plants and benches it is about, by which tasks of one kind are told apart.
    """

    request: str
    routine: Callable[[Random], Routine]
    goal: Goal
    about: tuple[object, ...]


def think(random: Random, fact: str) -> str:
    """Puts a thought together: an opening, a fact, one or two worries.

    Args:
        random: source of chance of the trial.
        fact: what the thought is about.

    Returns:
        Three to five sentences.
    """
    words = [pick(random, OPENINGS), fact]
    for _ in range(1 + int(random.random() * 2)):
        words.append(pick(random, WORRIES))
    return " ".join(words)


def look_up(random: Random, plant: str) -> Act:
    """Opens the handbook.

    Args:
        random: source of chance of the trial.
        plant: name of the plant.

    Returns:
        The step.
    """
    fact = pick(
        random,
        (
            f"The handbook says what {plant} needs.",
            f"I do not know by heart what {plant} likes, so I open its page.",
            f"With the page of {plant} I can compare.",
        ),
    )
    return Act(think(random, fact), "", "look_up_plant", {"plant": plant})


def read_sensor(random: Random, bench: int, kind: str, *, fact: str) -> Act:
    """Reads one sensor.

    Args:
        random: source of chance of the trial.
        bench: number of the bench.
        kind: "moisture", "temperature" or "light".
        fact: why it reads.

    Returns:
        The step.
    """
    return Act(think(random, fact), "", "read_sensor", {"bench": bench, "kind": kind})
