from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.counted import read_counted

from treetrain.cli.tokenizers import load_tokenizer, plain_decode
from treetrain.data.drift_watch import DriftWatch
from treetrain.data.sample import Sample
from treetrain.data.tree_file import tree_lines
from treetrain.tree.build import build_prefix_tree

QUESTION = {"role": "user", "content": "water bench 3"}


def watch_rows(
    folder: Path, tokenizer: Any, *rows: Any, **arguments: Any
) -> tuple[DriftWatch, list[Any]]:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    watch = DriftWatch(None if tokenizer is None else plain_decode(tokenizer))
    samples, _ = read_counted(path, tokenizer=tokenizer, watch=watch, **arguments)
    return watch, samples


def thought(text: str, answer: str) -> dict[str, str]:
    return {"role": "assistant", "content": f"<think>\n{text}\n</think>\n\n{answer}"}


def talk(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": roles[place % 2], "content": content} for place, content in enumerate(contents)
        ]
    }


def test_an_answer_that_was_not_cut_as_its_text_is_drifts_where_it_was_cut(tmp_path, tokenizer):
    words = tokenizer.encode("the plant", add_special_tokens=False)
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in " bench"]
    watch, samples = watch_rows(tmp_path, tokenizer, {"prompt": "a", "ids": [*words, *letters]})
    (drift,) = watch.answer_drifts
    assert (drift.source, drift.later, drift.kind) == ("data.jsonl:1", None, "re-tokenised")
    assert drift.place == len(words)
    assert drift.lost == len(letters)
    assert samples[0].tokens[-len(letters) :].tolist() == letters
    assert (watch.answers, watch.answer_tokens) == (1, len(words) + len(letters))


def test_an_answer_as_its_text_is_encoded_does_not_drift(tmp_path, tokenizer):
    ids = tokenizer.encode("water bench 3<|end|>", add_special_tokens=False)
    watch, _ = watch_rows(tmp_path, tokenizer, {"prompt": "a", "ids": ids, "retok": [1]})
    assert (watch.answers, watch.answer_drifts, watch.other_retok) == (1, [], 1)


def test_a_recorded_text_is_taken_before_the_decoded_ids(tmp_path, tokenizer):
    ids = tokenizer.encode("water", add_special_tokens=False)
    watch, _ = watch_rows(tmp_path, tokenizer, {"prompt": "a", "ids": ids, "text": "fire"})
    assert [drift.kind for drift in watch.answer_drifts] == ["re-rendered"]


def test_an_id_that_no_tokenizer_has_is_refused_and_not_decoded(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=r"^data\.jsonl:1: tokens must be in 0 \.\. "):
        watch_rows(tmp_path, tokenizer, {"prompt": "a", "ids": [-1]})


def test_history_as_it_was_sampled_does_not_drift(tmp_path, tokenizer, templates):
    row = talk("a", "b", "c", "d", "e", "f")
    watch, samples = watch_rows(
        tmp_path, tokenizer, row, expand="per_step", chat_template=templates.chatml
    )
    assert (watch.steps, watch.step_drifts, watch.unknown) == (2, [], 0)
    tokens = [sample.tokens.tolist() for sample in samples]
    assert [own.tolist() for _, own in watch.rendered] == tokens
    assert [own.tolist() for _, own in watch.kept] == tokens


def test_a_stripped_thought_is_named_by_message_and_place(tmp_path, tokenizer, templates):
    row = {"messages": [QUESTION, thought("hm", "ok"), QUESTION, thought("so", "done")]}
    watch, samples = watch_rows(
        tmp_path, tokenizer, row, expand="per_step", chat_template=templates.stripping
    )
    (drift,) = watch.step_drifts
    assert (drift.source, drift.later) == ("data.jsonl:1: messages[1]", "data.jsonl:1: messages[3]")
    assert drift.kind == "re-rendered"
    assert drift.place == int(samples[0].weights.argmax())
    assert drift.lost == int(samples[0].weights.sum())
    assert tokenizer.decode(drift.recorded.tolist()).startswith("<think>")
    assert tokenizer.decode(drift.again.tolist()).startswith("ok")


def test_the_message_is_the_one_that_was_rewritten_not_the_one_before_the_step(
    tmp_path, tokenizer, templates
):
    tool = {"role": "tool", "content": "wet"}
    steps = [thought("hm", "look"), tool, thought("so", "done")]
    row = {"messages": [QUESTION, *steps, QUESTION, thought("no", "bye")]}
    watch, _ = watch_rows(
        tmp_path, tokenizer, row, expand="per_step", chat_template=templates.stripping
    )
    (drift,) = watch.step_drifts
    assert (drift.source, drift.later) == ("data.jsonl:1: messages[1]", "data.jsonl:1: messages[5]")


def test_kept_history_begins_with_every_step_before_it(tmp_path, tokenizer, templates):
    answers = [thought(word, "ok") for word in ("one", "two", "three")]
    row = {"messages": [message for own in answers for message in (QUESTION, own)]}
    watch, samples = watch_rows(
        tmp_path, tokenizer, row, expand="per_step", chat_template=templates.stripping
    )
    kept = [own for _, own in watch.kept]
    assert len(watch.step_drifts) == 2
    assert watch.unknown == 0
    for before, own, sample in zip(kept[:-1], kept[1:], samples[1:], strict=True):
        assert np.array_equal(own[: len(before)], before)
        sampled = sample.tokens[sample.weights == 1]
        assert np.array_equal(own[-len(sampled) :], sampled)
    text = tokenizer.decode(kept[-1].tolist())
    assert [text.count(word) for word in ("one", "two", "three", "bench 3")] == [1, 1, 1, 3]


def test_a_step_whose_new_messages_cannot_be_told_is_counted_and_kept_as_it_is(
    tmp_path, tokenizer, templates
):
    row = talk("a", "b", "c", "d")
    watch, _ = watch_rows(
        tmp_path, tokenizer, row, expand="per_step", chat_template=templates.last_differs
    )
    assert (len(watch.step_drifts), watch.unknown) == (1, 1)
    assert [own.tolist() for _, own in watch.kept] == [own.tolist() for _, own in watch.rendered]


def test_replies_of_a_message_tree_are_compared_with_the_answer_they_follow(
    tmp_path, tokenizer, templates
):
    def reply(role: str, text: str, *replies: Any) -> dict[str, Any]:
        return {"role": role, "text": text, "replies": list(replies)}

    again = [reply("prompter", "c", reply("assistant", answer)) for answer in ("d", "e")]
    tree = {
        "prompt": reply("prompter", "a", reply("assistant", "<think>\nx\n</think>\n\nb", *again))
    }
    watch, samples = watch_rows(
        tmp_path, tokenizer, tree, expand="per_step", chat_template=templates.stripping
    )
    assert len(samples) == 3
    assert watch.steps == 2
    assert [drift.place for drift in watch.step_drifts] == [int(samples[0].weights.argmax())] * 2


def test_conversations_of_two_rows_are_not_compared(tmp_path, tokenizer, templates):
    watch, _ = watch_rows(
        tmp_path,
        tokenizer,
        talk("a", "b"),
        talk("a", "c"),
        expand="per_step",
        chat_template=templates.chatml,
    )
    assert watch.steps == 0


def test_rows_of_ids_are_compared_with_the_row_before_of_their_trajectory(tmp_path):
    rows = [
        {"input_ids": ids, "group": "g", "trajectory_id": name}
        for name, ids in [("x", [1, 2]), ("y", [7]), ("x", [1, 2, 3]), ("x", [1, 4]), (None, [9])]
    ]
    watch, _ = watch_rows(tmp_path, None, *rows)
    assert (watch.steps, watch.unknown) == (2, 1)
    (drift,) = watch.step_drifts
    assert (drift.kind, drift.place, drift.lost) == ("other ids", 1, 2)
    assert (drift.source, drift.later) == ("data.jsonl:3", "data.jsonl:4")


def test_recorded_steps_are_compared_and_those_of_a_skipped_row_are_not(tmp_path):
    step = {"prompt_ids": [1], "response_ids": [2], "trajectory_id": "x"}
    wrong = {"group": "g", "samples": [{**step, "prompt_ids": [9]}, {**step, "response_ids": "2"}]}
    rows = [step, wrong, {**step, "prompt_ids": [1, 2, 3]}, {**step, "prompt_ids": [1, 7]}]
    watch, samples = watch_rows(tmp_path, None, *rows, skip_bad_rows=True)
    assert len(samples) == len(watch.rendered) == 3
    assert watch.steps == 2
    assert [(drift.place, drift.lost) for drift in watch.step_drifts] == [(1, 3)]


def test_a_tree_file_is_watched_in_the_order_it_was_written_in(tmp_path):
    samples = [Sample([1, 2][:n], trajectory="x", group=n % 2) for n in (2, 1, 2)]
    path = tmp_path / "t.tree.jsonl"
    path.write_text("".join(line for line, _ in tree_lines(samples, build_prefix_tree)))
    watch = DriftWatch()
    read_counted(path, watch=watch)
    assert (watch.steps, watch.step_drifts) == (1, [])
    assert [own.tolist() for _, own in watch.rendered] == [[1, 2], [1], [1, 2]]


@pytest.mark.integration
def test_recorded_rollouts_drift_where_they_say_so(shared_data):
    path = shared_data / "smollm2-rollouts" / "rollouts.jsonl"
    tokenizer = load_tokenizer("smollm2")
    watch = DriftWatch(plain_decode(tokenizer))
    read_counted(path, tokenizer=tokenizer, watch=watch)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = {f"rollouts.jsonl:{n}" for n, row in enumerate(rows, start=1) if row["retok"]}
    assert {drift.source for drift in watch.answer_drifts} == told
    assert watch.other_retok == 0
    assert all(drift.kind == "re-tokenised" for drift in watch.answer_drifts)
