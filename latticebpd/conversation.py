"""Several turns with a model, in its chat template; what was read in earlier turns is not read again."""

from __future__ import annotations

import json
from typing import Any

from fst.files import PathLike, write_text
from latticebpd.checks import expect
from latticebpd.decoding.loop import Generated
from latticebpd.decoding.session import TextCache
from latticebpd.drafters.drafter import Drafter
from latticebpd.loading import Loaded
from latticebpd.models.chat import ChatTemplate


class Chat:
    """A conversation with a loaded model; ValueError if it has no chat template, or one that takes no system prompt.

    An answer is the one that ``loaded.generate`` writes after the whole conversation. The model's cache goes from turn
    to turn, so that only what is new is read.

    ``turns`` are the user's and the model's, alternating. Of the last prompt ``cache.shared`` tokens were not read
    again.

    drafter: by default the loaded one's.
    system_prompt: by default the loaded one's, if any, else the template's own.
    """

    def __init__(self, loaded: Loaded, drafter: Drafter | None = None, system_prompt: str | None = None) -> None:
        if not loaded.in_chat:
            remedy = "`latticebpd models get smollm2-135m` downloads one that has it"
            raise ValueError(f"expected a model with a chat template, got {loaded.name} without one; {remedy}")
        self.loaded, self.cache = loaded, TextCache()
        self.drafter = loaded.drafter() if drafter is None else drafter
        self.begin(loaded.system_prompt if system_prompt is None else system_prompt)

    def begin(self, system_prompt: str | None = None) -> None:
        """Begin anew, with another system prompt or, if it is None, the template's own."""
        prompts = ChatTemplate(self.loaded.tokenizer, self.loaded.target, system_prompt)
        prompts.prompt(["?"])  # which a template without system prompts refuses
        self.system_prompt, self.prompts, self.turns = system_prompt, prompts, list[str]()

    def answer(self, text: str, **options: Any) -> Generated:
        """Answer a user's turn; ``options`` are those of :func:`latticebpd.generate`. An error leaves the conversation
        as it was."""
        arguments = {"eos_token_id": self.prompts.eos_ids, "text_cache": self.cache, **options}
        out = self.loaded.generate(self.prompts.prompt([*self.turns, text]), self.drafter, **arguments)
        self.turns += [text, self.prompts.text(out.tokens[0, out.prompt_length :].tolist())]
        return out

    def retry(self, **options: Any) -> Generated:
        """Answer the last turn again, in place of its answer; ValueError if there is none. Only sampling writes another
        text."""
        expect(self.turns, "a turn to answer again", "an empty conversation")
        before = self.turns
        self.turns = before[:-2]
        try:
            return self.answer(before[-2], **options)
        except BaseException:
            self.turns = before
            raise

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as chat templates and data sets have it, from the system prompt on, if one was given."""
        return self.prompts.opening + self.prompts.messages(self.turns)

    def save(self, path: PathLike) -> None:
        """Write a JSON object, one line: the model's name and the messages. Data sets of conversations are such
        lines."""
        write_text(path, json.dumps({"model": self.loaded.name, "messages": self.messages}, ensure_ascii=False) + "\n")
