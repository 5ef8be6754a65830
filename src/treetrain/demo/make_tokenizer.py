"""Trains the tokenizer that the package ships for the built-in example.

A byte-level BPE of 1,024 entries, trained on generated rows of another seed than the example's own.
Run `python -m treetrain.demo.make_tokenizer FOLDER` to make it again; the chat template beside the
shipped files is written by hand and is copied.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from treetrain.demo.trajectories import make_rows

SHIPPED = Path(__file__).parent / "tokenizer"
VOCABULARY = 1024
END = "<|end|>"
PAD = "<|pad|>"
MARKERS = (
    PAD,
    END,
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
# Words with the space before them, digits one by one, runs of other signs.
PIECES = r" ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+"


def train_tokenizer(seed: int) -> Tokenizer:
    """Trains the tokenizer on generated text.

    Args:
        seed: seed of the rows it learns from.

    Returns:
        The tokenizer; every string comes back unchanged from encode and decode.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    return tokenizer


def _texts(seed: int) -> Iterator[str]:
    rows = make_rows(tasks=200, trials=4, seed=seed)
    yield json.dumps(rows[0]["tools"])
    for row in rows:
        messages = row["messages"]
        assert isinstance(messages, list)
        for message in messages:
            yield "\n".join(str(message.get(key, "")) for key in ("reasoning_content", "content"))
            for call in message.get("tool_calls", ()):
                yield call["function"]["name"] + " " + call["function"]["arguments"]


def write_tokenizer(folder: Path, seed: int) -> None:
    """Trains the tokenizer and writes it as a folder that `AutoTokenizer` loads.

    Args:
        folder: where `tokenizer.json`, `tokenizer_config.json` and the chat template go.
        seed: seed of the rows it learns from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train_tokenizer(seed).save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": 8192,
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    if folder.resolve() != SHIPPED.resolve():
        shutil.copy(SHIPPED / "chat_template.jinja", folder)


if __name__ == "__main__":
    write_tokenizer(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED, seed=1)
