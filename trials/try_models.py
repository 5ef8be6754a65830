"""Tries every causal model type that the installed transformers knows; writes docs/models.*.

python trials/try_models.py            all types, and the two pages
python trials/try_models.py llama opt  these types only, printed
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from trial import Outcome, try_type

PAGES = Path(__file__).resolve().parents[1] / "docs"
MEANINGS = {
    "exact": "logits and all gradients are those of each sequence alone",
    "exact_4d": "the same, through one dense mask whose memory grows with the square of the tree",
    "refused": "`prepare` raises UnsupportedModelError, for this reason",
    "not_built": "no tiny random model could be built or run",
    "wrong": "a fault of treetrain",
}


def try_all(model_types: list[str], workers: int) -> dict[str, Outcome]:
    """Try model types, each process for itself, so that one which dies takes no other along."""
    outcomes: dict[str, Outcome] = {}
    waiting = list(model_types)
    while waiting:
        with ProcessPoolExecutor(workers, get_context("spawn"), _use_one_thread) as pool:
            futures = {model_type: pool.submit(try_type, model_type) for model_type in waiting}
            died: list[str] = []
            for model_type, future in futures.items():
                try:
                    outcomes[model_type] = future.result()
                except BrokenProcessPool:
                    died.append(model_type)
                    continue
                if sys.stderr.isatty():
                    print(f"\r{len(outcomes)} of {len(model_types)}", end="", file=sys.stderr)
        # The first of those that died was running or next in turn: alone, it shows which.
        if died and workers > 1:
            workers = 1
        elif died:
            outcomes[died[0]] = Outcome("not_built", reason="the process that ran it died")
            died = died[1:]
        waiting = died
    return {model_type: outcomes[model_type] for model_type in model_types}


def write_pages(outcomes: dict[str, Outcome]) -> None:
    """Write docs/models.json and docs/models.md."""
    (PAGES / "models.json").write_text(
        json.dumps({name: asdict(outcome) for name, outcome in outcomes.items()}, indent=1) + "\n"
    )
    counts = Counter(outcome.status for outcome in outcomes.values())
    lines = [
        "# Models",
        "",
        f"Every causal model type of transformers {transformers.__version__}, tried with torch "
        f"{torch.__version__.split('+')[0]}",
        "as a tiny random model of four layers in float32, on a tree of two roots against each",
        "sequence alone; windows, chunks and choices of tokens are shorter than its paths. Errors",
        "are shares of the largest logit and the largest gradient. Where float32 is off by more",
        "than 1e-5 on either way, float64 is the judge. A status holds for that config: another of",
        "the same type may have layers that are refused, or a window that its trees never reach.",
        "`prepare` decides for the model at hand. `make models` writes this page and its JSON.",
        "",
        "| status | types | meaning |",
        "|---|---|---|",
        *(f"| {status} | {counts[status]} | {meaning} |" for status, meaning in MEANINGS.items()),
        "",
        "| type | status | logits | gradients | reason |",
        "|---|---|---|---|---|",
    ]
    for name, outcome in outcomes.items():
        errors = (outcome.logits_error, outcome.gradient_error)
        shown = " | ".join("" if error is None else f"{error:.1e}" for error in errors)
        reason = outcome.reason.replace("|", "\\|")
        lines.append(f"| {name} | {outcome.status} | {shown} | {reason} |")
    (PAGES / "models.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run the script; 1 if a type is wrong."""
    parser = argparse.ArgumentParser(description="Tries every causal model type.")
    parser.add_argument("types", nargs="*", help="model types; all if none is named")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    arguments = parser.parse_args()
    known = list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    if unknown := [name for name in arguments.types if name not in known]:
        parser.error(f"no causal model types: {', '.join(unknown)}")
    outcomes = try_all(arguments.types or known, arguments.workers)
    if arguments.types:
        print(json.dumps({name: asdict(outcome) for name, outcome in outcomes.items()}, indent=1))
    else:
        write_pages(outcomes)
        print(Counter(outcome.status for outcome in outcomes.values()))
    return 1 if any(outcome.status == "wrong" for outcome in outcomes.values()) else 0


def _use_one_thread() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


if __name__ == "__main__":
    sys.exit(main())
