"""Examples of each verb, as its help shows them; they read what `treetrain demo` writes."""

from __future__ import annotations

_ROWS = "runs/demo/greenhouse.jsonl --tokenizer demo --expand per_step"

#: The command lines of each verb; under "" those of the bare command.
EXAMPLES = {
    "": (
        "treetrain demo",
        f"treetrain inspect {_ROWS}",
        "treetrain train examples/train_agent.yaml --set steps=4",
    ),
    "inspect": (
        f"treetrain inspect {_ROWS}",
        f"treetrain inspect {_ROWS} --html page.html --json",
    ),
    "verify": (
        "treetrain verify --model tiny:llama --limit-tokens 500",
        f"treetrain verify {_ROWS} \\\n      --model tiny:llama --limit-tokens 3000",
    ),
    "plan": (
        f"treetrain plan {_ROWS} \\\n      --model tiny:llama --memory 24MiB --group task-02",
    ),
    "convert": (
        "treetrain convert runs/demo/greenhouse.jsonl greenhouse.tree.jsonl \\\n"
        "      --tokenizer demo --expand per_step",
        "treetrain convert greenhouse.tree.jsonl ids.jsonl",
    ),
    "train": (
        "treetrain train examples/train_agent.yaml --set steps=4",
        "treetrain train runs/train_agent/config.yaml --resume",
    ),
    "schema": ("treetrain schema > treetrain.schema.json",),
    "doctor": ("treetrain doctor", "treetrain doctor --json"),
    "demo": ("treetrain demo", "treetrain demo --seed 1 --out runs/other --json"),
}


def show_examples(verb: str) -> str:
    """Write the examples of a verb below its help.

    Args:
        verb: the verb; "" for the bare command.

    Returns:
        Lines, the first a heading.
    """
    lines = EXAMPLES[verb]
    # The bare command's examples begin with the demo themselves.
    reads = bool(verb) and any("greenhouse" in line or "examples/" in line for line in lines)
    heading = "examples, in a clone after treetrain demo:" if reads else "examples:"
    return "\n".join([heading, *(f"  {line}" for line in lines)])
