"""Writes docs/benchmarks.md from the JSON files that `make bench` leaves in runs/bench.

The section of a benchmark without such a file stays as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

from draw_memory import draw_memory

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """# Benchmarks

Written by `make bench-tables` from what `make bench` measured. Contestants take turns in one
process; a ratio is the median of the ratios within each round, low and high its quartiles. Timings
of one contestant vary more between processes than within one, so compare ratios, not seconds.
In steps and attention a round is cut into `slots`: in each the trees are computed once and the
separate sequences go on where they stopped, so that a machine whose speed changes within seconds
slows both alike. Every turn begins with a call that does not count, since training is one step
after another, and a first call after another contestant's finds other data in the caches.
A benchmark of which some cases are missing was run with `--only`.
"""

TITLES = {
    "bench_build": """## Building prefix trees

Targets: 0.02 s from int64 arrays and 0.1 s from lists for the agent and GRPO cases, 0.5 s for the
others, and five times the bytes of the input.""",
    "bench_attention": """## Attention

Forward and backward of one layer, 8 query and 4 key/value heads of size 64. `pair_bound` is the
ratio of attention pairs, `pair_fraction` the measured speed-up over each sequence alone held
against it. Target: a window of 256 on a path of 4,096 costs at most 0.25 of full attention
(`window_cost_ratio`).""",
    "bench_head": """## The chunked head

`limit_bytes` is two chunks of logits.""",
    "bench_step": """## A training step

Forward and backward against separate sequences; `flop_bound` is the ratio of floating-point work,
`bound_fraction` the measured speed-up held against it (above 1 where separate sequences pay a fixed
cost each), `speedup_leafized` the speed-up over separate sequences without those that are prefixes
of others. `gradient_error` is the worst parameter's, relative to the largest entry of its gradient,
against float64.""",
    "bench_partition": """## Partitions

A step over partitions against the undivided step (`time_ratio`). Bytes are those of tensors that
live beside parameters and their gradients, at the worst moment; `saved_bytes` what autograd keeps
at once, `path_bytes` what it would keep of one row as long as the largest path of partitions, and
the longest gateway with its gradients. `gradient_difference` is against the undivided step,
`gradient_error` against separate sequences in float64, where there are few enough. Targets: no
duplicate token, at most 1.05 times the time with partitions of 512 tokens and more, a `saved_ratio`
of at most 1.1; the chain at a capacity of 128 with activations computed again in 0.15 of the memory
and 1.5 times the time. A pass of few tokens costs more on two threads than on one, since its small
operations wait for each other, so both are shown (`threads`).""",
    "bench_exactness": """## Exactness of partitions

Gradients of steps over partitions against each sequence alone through the untouched model, whose
float64 gradients are the truth: the largest error of any entry, relative to the largest gradient.
`float64_7` is a tree cut into 7 partitions, the worse of keeping and computing again;
`float32_separate` and `float32_24` are separate sequences and 24 partitions in float32. Target:
1e-10 in float64.""",
    "bench_memory": """## Memory of partitions

Resident memory of a process against what `plan` estimates, weights and gradients included. Target:
within 15 %, and the tree of 64 k tokens within 6 GiB (`resident_bytes`, torch itself included).

![Memory against capacity](memory.svg)""",
}


def write_table(results: list[dict[str, object]]) -> str:
    columns = list(dict.fromkeys(key for result in results for key in result))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for result in results:
        cells = (format_figure(result.get(column, "")) for column in columns)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def draw(results: list[dict[str, object]]) -> None:
    comb = [one for one in results if str(one["name"]).startswith("long_comb")]
    whole = float(str(comb[0]["undivided_bytes"]))
    chosen = [{key: value for key, value in one.items() if key != "name"} for one in comb]
    (ROOT / "docs" / "memory.svg").write_text(draw_memory(chosen, whole))  # pyright: ignore


def read_sections(page: Path) -> dict[str, str]:
    """The sections of a page by their heading."""
    if not page.exists():
        return {}
    found = page.read_text().split("\n## ")[1:]
    return {f"## {text.splitlines()[0]}": f"## {text.strip()}" for text in found}


def main() -> None:
    page = ROOT / "docs" / "benchmarks.md"
    before = read_sections(page)
    parts = [INTRODUCTION]
    for name, title in TITLES.items():
        file = ROOT / "runs" / "bench" / f"{name}.json"
        if not file.exists():
            heading = title.splitlines()[0]
            parts += [before[heading]] if heading in before else []
            continue
        measured = json.loads(file.read_text())
        machine = ", ".join(f"{key} {value}" for key, value in measured["machine"].items())
        if name == "bench_memory":
            draw(measured["results"])
        parts += [title, write_table(measured["results"]), f"Measured on: {machine}."]
    page.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
