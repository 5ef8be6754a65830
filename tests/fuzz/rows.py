"""One small right row, or a few, of every kind that a file may hold: what fuzzing begins with."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]

_ASKED = {"role": "user", "content": "q"}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
_TALK = [
    _ASKED,
    {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "o"},
    {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
]
_AGENT = {
    "source": "agent",
    "message": "a",
    "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {"a": 1}}],
    "observation": {"results": [{"source_call_id": "c", "content": "o"}, {"content": "p"}]},
    "metrics": {"prompt_token_ids": [1], "completion_token_ids": [2, 3], "logprobs": [-1.0, -2]},
}
_INNER = {
    "schema_version": "ATIF-v1.7",
    "trajectory_id": "s",
    "steps": [{"source": "user", "message": "q"}, {"source": "agent", "message": "a"}],
}

TOKEN_IDS: Rows = [
    {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1], "reward": 1.0},
    {"input_ids": [1, 2], "loss_mask": [0, 1], "keys": [5, -5], "logprobs": [0.0, -1.5],
     "advantage": [0, 1], "group": 3, "trajectory_id": "t"},
    {"input_ids": [4, 4], "weights": [0.0, 0.5], "completion_mask": [False, True]},
    {"group": "g", "samples": [{"input_ids": [1, 2]}, {"messages": _TALK}]},
]  # fmt: skip
STEPS: Rows = [
    {"prompts": [0, 1], "responses": [2, 3], "attention_mask": [0, 1, 1, 1], "uid": "u",
     "response_mask": [1, 0], "rollout_log_probs": [-1, 0], "token_level_scores": [0, 1.5]},
    {"prompt_token_ids": [[1], [1, 2]], "response_ids": [[3], [4, 5]], "loss_masks": [[1], [1, 0]],
     "rewards": [1.0, 0], "trajectory_ids": [{"instance_id": "i", "repetition_id": 0}] * 2},
    {"prompt_ids": [1], "completion_ids": [2], "completion_mask": [1], "advantages": 0.5,
     "prompt_mask": [1], "env_mask": [1], "sampling_per_token_logps": [-0.5], "step": 2},
    {"prompt_ids": [1, 2, 9], "response_ids": [7], "input_ids": [1, 2, 9, 7], "uid": "u",
     "trajectory_id": 4},
]  # fmt: skip
PROMPTS: Rows = [
    {"prompt": "p", "completion": "c", "group": "g", "advantage": 0.5},
    {"prompt": [_ASKED], "completion": _TALK[1:], "tools": [{"name": "f"}]},
    {"prompt": "p", "ids": [1, 2], "text": "t"},
    {"prompt": "p", "ids": [70, 71], "retok": [3], "reward": -1},
]
MESSAGES: Rows = [
    {"messages": _TALK, "trajectory_id": "t"},
    {"messages": '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]',
     "tools": '[{"type": "function", "function": {"name": "f"}}]', "reward": 1},
]  # fmt: skip
MESSAGE_TREES: Rows = [
    {"message_tree_id": "m",
     "prompt": {"text": "q", "role": "prompter", "replies": [
         {"text": "a", "role": "assistant", "replies": []},
         {"text": "b", "role": "assistant", "replies": [
             {"text": "r", "role": "prompter", "replies": []}]}]}},
]  # fmt: skip
SHAREGPT: Rows = [
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 0},
                       {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}],
     "system": "s", "tools": '[{"name": "f"}]'},
]  # fmt: skip
SWE_AGENT: Rows = [
    {"history": [_ASKED, {"role": "assistant", "content": "a", "is_demo": False}], "info": {}},
    {"trajectory": [{"query": [_ASKED], "response": "a"}], "instance_id": "i"},
    {"trajectory": [{"role": "user", "text": "q"}, {"role": "ai", "text": "a"}]},
]
ATIF: Rows = [
    {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"name": "a", "version": "1"},
     "steps": [{"source": "user", "message": "q"}, _AGENT], "subagent_trajectories": [_INNER]},
    {"schema_version": "ATIF-v1.0", "agent": {"tool_definitions": [{"name": "f"}]},
     "steps": [{"source": "system", "message": [{"type": "text", "text": "y"}]},
               {"source": "user", "message": "q"},
               {"source": "agent", "message": "a", "is_copied_context": True},
               {"source": "agent", "message": "b", "llm_call_count": 1}],
     "continued_trajectory_ref": "next.json"},
]  # fmt: skip

#: By the name under which a kind is counted.
ROWS: dict[str, Rows] = {
    "token ids": TOKEN_IDS,
    "steps of a policy": STEPS,
    "prompts": PROMPTS,
    "messages": MESSAGES,
    "message trees": MESSAGE_TREES,
    "ShareGPT": SHAREGPT,
    "SWE-agent": SWE_AGENT,
    "ATIF": ATIF,
}
