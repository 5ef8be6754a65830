"""`treetrain demo`: generate, inspect, verify, train, act and measure the built-in example.

The stages and what they say are in `treetrain.demo`; this file runs them in order.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from time import perf_counter

from treetrain.cli.models import load_model
from treetrain.cli.reading import DEMO_TEMPLATE
from treetrain.cli.sources import without_bars
from treetrain.cli.tokenizers import load_tokenizer

EXIT_NOT_EQUAL = 1
#: Lines of the training loss.
LINES = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments.

    Args:
        parser: the verb's own parser.
    """
    parser.add_argument(
        "--model",
        choices=("small", "smollm2"),
        default="small",
        help="a Llama of 0.9 M parameters from scratch (default), or SmolLM2-135M-Instruct",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of data and weights (default 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="folder for the data, the figures and the trained model (default runs/demo)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the demo.

    Args:
        args: the parsed arguments.

    Returns:
        0, or 1 where tree training was not equal to separate training.
    """
    import torch

    from treetrain.data.rows import read_samples_with_report
    from treetrain.demo import agreement, models, page, plans, practice, stages, told
    from treetrain.demo.acting import act_on
    from treetrain.models.prepare import prepare
    from treetrain.report.inspection import inspect_samples
    from treetrain.report.tables import as_json

    start = perf_counter()
    out = page.Page(silent=args.json)
    plan = plans.PLANS[args.model]
    out.working("loading the model")
    if args.model == "small":
        model, tokenizer = models.make_small_model(args.seed)
    else:
        tokenizer = load_tokenizer(args.model)
        # Its own template renders neither tools nor thinking.
        tokenizer.chat_template = DEMO_TEMPLATE.read_text(encoding="utf-8")
        model = load_model(args.model)
    shape = models.measure_shape(model)
    size = sum(parameter.numel() for parameter in model.parameters())
    out.say(
        "treetrain",
        [
            f"demo: model {args.model}, {size / 1e6:.1f} M parameters, float32; seed {args.seed}; "
            f"{torch.get_num_threads()} threads; torch {torch.__version__}"
        ],
    )

    path = stages.generate(plan, args.out, seed=args.seed)
    samples, read = read_samples_with_report(path, tokenizer=tokenizer, expand="per_step")
    out.say("generate", page.tell_data(path, len(samples)))
    inspection = inspect_samples(samples, shape=shape)
    out.say("inspect", page.tell_inspection(inspection))

    tasks = stages.by_task(samples)
    report = stages.check(model, stages.cut(tasks[0], plan.verified_tokens), out.working)
    out.say("verify", page.tell_report(report))

    compared = agreement.compare_ways(
        model,
        stages.cut(tasks[-1], plan.compared_tokens),
        steps=plan.compared_steps,
        learning_rate=0.1,
        on_progress=partial(out.working, "the same steps both ways"),
    )
    out.say("agree", told.tell_agreement(compared))

    practised = tasks
    if plan.practice_tasks:
        samples = stages.read_practice(plan, args.out, tokenizer, seed=args.seed)
        practised = stages.by_task(samples)
    held_out = practice.draw_held_out(plan.held_out, seed=args.seed)
    act = partial(act_on, model, tokenizer, held_out, tools=practice.PRACTICE_TOOLS)
    before = act(on_progress=partial(out.working, "acting before training"))

    handle = prepare(model)
    steps: list[stages.Step] = []
    out.working("training step", 0, plan.steps)
    for step in stages.train(model, practised, plan):
        steps.append(step)
        out.working("training step", len(steps), plan.steps)
    handle.undo()
    out.say("train", page.tell_steps(steps, -(-plan.steps // LINES)))

    after = act(on_progress=partial(out.working, "acting after training"))
    if held_out:
        out.say("act", told.tell_attempts(before, after))

    measuring = partial(out.working, "measuring one step both ways, in turn")
    measuring()
    measured = stages.cut(tasks[-1], plan.measured_tokens)
    measurement = stages.measure(model, measured, plan, shape, measuring)
    out.say("measure", page.tell_measurement(measurement))

    with without_bars():
        model.save_pretrained(args.out / "model")
    tokenizer.save_pretrained(args.out / "model")
    seconds = perf_counter() - start
    found = {
        "model": args.model,
        "seed": args.seed,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds": seconds,
        "inspect": as_json(inspection, read, None),
        "verify": report.to_dict(),
        "agree": vars(compared),
        "train": [vars(step) for step in steps],
        "act": {
            "before": [vars(attempt) for attempt in before],
            "after": [vars(attempt) for attempt in after],
        },
        "measure": stages.as_figures(measurement),
    }
    (args.out / "demo.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    out.say(
        "done",
        [
            f"in {int(seconds // 60)} min {int(seconds % 60)} s; data, figures and the trained "
            f"model are in {args.out}"
        ],
    )
    if args.json:
        print(json.dumps(found))
    return 0 if report.equal else EXIT_NOT_EQUAL
