from __future__ import annotations

import subprocess
import sys

from treetrain.training.config import TrainConfig
from treetrain.training.config_schema import make_schema

WORDS = {"type", "properties", "description", "default", "enum", "minimum", "maximum", "items"}
WORDS |= {
    "minLength",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "additionalProperties",
    "required",
    "anyOf",
}
WORDS |= {"$ref", "const", "minItems", "maxItems", "prefixItems", "title", "$defs", "$schema"}


def walk(schema, place=()):
    yield place, schema
    for word in ("anyOf", "prefixItems"):
        for number, choice in enumerate(schema.get(word, [])):
            yield from walk(choice, (*place, word, number))
    for word in ("properties", "$defs"):
        for name, child in schema.get(word, {}).items():
            yield from walk(child, (*place, word, name))


def test_every_key_says_what_it_means_and_uses_words_of_json_schema_alone():
    schema = make_schema()
    assert set(schema["properties"]) == set(TrainConfig.model_fields)
    seen = 0
    for place, part in walk(schema):
        assert part.keys() <= WORDS, place
        if len(place) > 1 and place[-2] == "properties":
            assert part["description"].endswith("."), place
            seen += 1
        if "properties" in part:
            assert part["additionalProperties"] is False
    assert seen > 60


def test_required_keys_are_those_without_a_default():
    schema = make_schema()
    assert schema["required"] == ["model", "data", "output", "reduction", "optimizer"]
    assert schema["$defs"]["RouterConfig"]["required"] == ["form"]


def test_one_file_may_stand_without_a_list():
    files = make_schema()["$defs"]["DataConfig"]["properties"]["files"]
    assert files["anyOf"][0] == {"type": "string"}
    assert files["anyOf"][1]["type"] == "array"


def test_the_schema_needs_no_torch():
    code = (
        "import sys; from treetrain.cli.main import main; main(['schema']);"
        "print({'torch', 'transformers'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()"
    assert done.stdout.startswith("{")
