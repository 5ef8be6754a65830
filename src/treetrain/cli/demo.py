"""`treetrain demo`: generate, inspect, verify, measure, train and act, on the built-in example.

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
from treetrain.wording import say_count, say_duration

EXIT_NOT_EQUAL = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments.

    Args:
        parser: the verb's own parser.
    """
    parser.add_argument(
        "--model",
        choices=("small", "smollm2"),
        default="small",
        help="a Llama of 3.2 M parameters from scratch (default), or SmolLM2-135M-Instruct",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of data and weights (default 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="folder for the data, the figures and the trained model (default runs/demo)",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the demo.

    Args:
        args: the parsed arguments.

    Returns:
        0, or 1 where tree training was not equal to separate training.

    Raises:
        ValueError: there is a file in the place of the folder.
    """
    # Told before anything that takes seconds is imported.
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {str(args.out)!r}")
    import torch

    from treetrain.data.report import ReadReport
    from treetrain.data.rows import read_samples
    from treetrain.demo import agreement, learning, lines, measure, models, practice, stages
    from treetrain.demo.acting import act_on
    from treetrain.demo.plans import PLANS
    from treetrain.models.prepare import prepare
    from treetrain.models.shape import measure_shape
    from treetrain.report.inspection import inspect_samples
    from treetrain.report.largest import largest_trees
    from treetrain.report.page import PageContent, write_page
    from treetrain.report.tables import as_json
    from treetrain.training.saving import save_model

    start = perf_counter()
    out = lines.StageLines(silent=args.json)
    plan = PLANS[args.model]
    out.working("loading the model")
    if args.model == "small":
        model, tokenizer = models.make_small_model(args.seed)
    else:
        tokenizer = load_tokenizer(args.model)
        # Its own template renders neither tools nor thinking.
        tokenizer.chat_template = DEMO_TEMPLATE.read_text(encoding="utf-8")
        model = load_model(args.model)
    shape = measure_shape(model)
    size = sum(parameter.numel() for parameter in model.parameters())
    out.say(
        "treetrain",
        [
            f"demo: model {args.model}, {size / 1e6:.1f} M parameters, float32; seed {args.seed}; "
            f"{say_count(torch.get_num_threads(), 'thread')}; torch {torch.__version__}"
        ],
    )

    path = stages.generate(plan, args.out, seed=args.seed)
    read = ReadReport(str(path))
    samples = read_samples(path, read, tokenizer=tokenizer, expand="per_step")
    out.say("generate", lines.tell_data(path, len(samples)))
    inspection = inspect_samples(samples, shape=shape)
    out.say("inspect", lines.tell_inspection(inspection))

    tasks = stages.by_task(samples)
    report = stages.check(model, stages.cut(tasks[0], plan.verified_tokens), out.working)
    out.say("verify", lines.tell_report(report))

    measuring = partial(out.working, "measuring one step both ways, in turn")
    measuring()
    measured = stages.cut(tasks[-1], plan.measured_tokens)
    measurement = measure.measure(model, measured, plan, shape, measuring)
    out.say("measure", lines.tell_measurement(measurement))

    compared = agreement.compare_ways(
        model,
        stages.cut(tasks[-1], plan.compared_tokens),
        steps=plan.compared_steps,
        learning_rate=plan.compared_rate,
        on_progress=partial(out.working, "the same steps both ways"),
    )
    out.say("agree", lines.tell_agreement(compared))

    errands = stages.read_practice(plan, args.out, tokenizer, seed=args.seed)
    held_out = practice.draw_held_out(plan.held_out, seed=args.seed)
    act = partial(act_on, model, tokenizer, held_out, tools=practice.PRACTICE_TOOLS)
    before = act(on_progress=partial(out.working, "acting before training"))

    handle = prepare(model)
    steps: list[learning.Step] = []
    out.working("training step", 0, plan.steps)
    for step in learning.train(model, errands, plan):
        steps.append(step)
        out.working("training step", len(steps), plan.steps)
    handle.undo()
    out.say("train", lines.tell_steps(steps, plan.errands_per_step))

    after = act(on_progress=partial(out.working, "acting after training"))
    out.say("act", lines.tell_attempts(before, after))

    with without_bars():
        save_model(model, tokenizer, args.out / "model")
    seconds = perf_counter() - start
    found = {
        "model": args.model,
        "seed": args.seed,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds": seconds,
        "inspect": as_json(inspection, read, None),
        "verify": report.to_dict(),
        "measure": measure.as_figures(measurement),
        "agree": vars(compared),
        "train": [vars(step) for step in steps],
        "act": {
            "before": [vars(attempt) for attempt in before],
            "after": [vars(attempt) for attempt in after],
        },
    }
    write_page(
        args.out / "report.html",
        PageContent(
            title=f"treetrain demo: model {args.model}",
            notes=[
                "counts and trees are those of greenhouse.jsonl; the run trained on "
                f"practice.jsonl, {len(errands):,} errands, {plan.errands_per_step} to a tree"
            ],
            inspection=as_json(inspection, read, tokenizer.decode),
            trees=largest_trees(samples),
            decode=tokenizer.decode,
            check=found["verify"],
            steps=learning.as_lines(steps),
            measurement=found["measure"],
            agreement=found["agree"],
            attempts=found["act"],
        ),
    )
    (args.out / "demo.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    out.say(
        "done",
        [
            f"in {say_duration(seconds)}; data, figures and the trained model are in {args.out}",
            f"all of it as a page: {args.out / 'report.html'}",
        ],
    )
    if args.json:
        print(json.dumps(found))
    return 0 if report.equal else EXIT_NOT_EQUAL
