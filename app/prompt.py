"""From messages to the token ids of a prompt.

Owns the join of chat template and vocabulary. Knows nothing of requests or engines. Invariant: a special token in the
prompt was written by the template; the spelling of one inside a message is encoded as the plain text it is, so that
nobody who writes a message can end his turn and begin another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.text import ChatTemplate, ChatTemplateError
from engine.vocab import Vocab

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # noncharacters: Unicode keeps them for marks inside a program


class PromptEncoder:
    """One model's way from messages to ids."""

    def __init__(self, template: ChatTemplate, vocab: Vocab) -> None:
        self.template = template
        self._vocab = vocab
        spellings = {vocab.decode([token_id], skip_special_tokens=False) for token_id in vocab.special_ids} - {""}
        longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
        any_special = "|".join(map(re.escape, longest_first)) or r"(?!)"  # which matches nowhere
        self._special = re.compile(any_special)
        self._marked = re.compile(f"{_OPEN}({any_special}){_CLOSE}")

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt, ready for the answer to begin unless that is not wanted. Raises ChatTemplateError.

        The rest is as `ChatTemplate.render` has it.
        """
        try:
            marked = [self._marked_in(each) for each in messages]
            marked_tools = None if tools is None else [self._marked_in(each) for each in tools]
            marked_variables = self._marked_in(variables or {})
        except RecursionError as error:
            raise ChatTemplateError("the messages or the tools are nested too deeply") from error
        text = self.template.render(
            marked,
            tools=marked_tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=marked_variables,
        )
        ids: list[int] = []
        for number, piece in enumerate(self._marked.split(text)):
            if piece:  # every other one stood between marks
                ids += self._vocab.encode(piece, parse_special=number % 2 == 0)
        return ids

    def _marked_in(self, value: Any) -> Any:
        """The same with every special token's spelling marked, however deep it lies."""
        if isinstance(value, str):
            return self._special.sub(rf"{_OPEN}\g<0>{_CLOSE}", value)
        if isinstance(value, Mapping):
            return {self._marked_in(key): self._marked_in(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._marked_in(each) for each in value]
        return value
