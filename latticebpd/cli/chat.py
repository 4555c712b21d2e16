"""``latticebpd chat``: several turns with a chat model."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.cli import model_options
from latticebpd.cli.accepted_blocks import streamer_for
from latticebpd.cli.json_option import with_json
from latticebpd.console import err, quiet_transformers

if TYPE_CHECKING:
    from latticebpd.conversation import Chat
    from latticebpd.decoding.loop import Generated

RETRY = "/retry"
COMMANDS = {
    "/help": "this list",
    RETRY: "answer the last turn again, with --temperature in other words",
    "/new": "begin another conversation",
    "/system TEXT": "the same with that system prompt; without TEXT the model's own",
    "/save FILE": "write the conversation as one line of JSON",
    "/quit": "end the chat, as Ctrl-D does",
}


@with_json
def chat(
    model: Path | None = typer.Option(
        None, help="Model with a chat template: directory, .gguf file, Hub id, or a name of `latticebpd models`."
    ),
    system_prompt: str | None = model_options.SYSTEM_PROMPT,
    system: str | None = model_options.SYSTEM,
    lm: Path | None = model_options.LM,
    drafter_model: Path | None = model_options.DRAFTER_MODEL,
    max_new_tokens: int = typer.Option(512, min=1, help="Length limit of an answer."),
    temperature: float | None = model_options.TEMPERATURE,
    top_k: int | None = model_options.TOP_K,
    top_p: float | None = model_options.TOP_P,
    seed: int | None = model_options.SEED,
    json_schema: Path | None = model_options.JSON_SCHEMA,
    json_object: bool = model_options.JSON_OBJECT,
    regex: str | None = model_options.REGEX,
    choice: list[str] = model_options.CHOICE,
    grammar: Path | None = model_options.GRAMMAR,
    weights: str | None = model_options.WEIGHTS,
    show_blocks: bool = model_options.SHOW_BLOCKS,
) -> list[dict[str, Any]]:
    """Chat with a model; the cache is kept between turns.

    Answers appear as their tokens are accepted; each is followed by its tokens per call of the model and per second.
    Ctrl-C ends an answer; Ctrl-D or /quit ends the chat. /retry answers the last turn again, /new begins another
    conversation, /system TEXT one with that system prompt, or the model's own without TEXT; /save FILE writes the
    conversation as one line of JSON; /help lists these. Structured output holds for every answer.

    A text of several lines that is pasted in a terminal is one turn, once Enter is pressed. Without a terminal, every
    line of standard input is a turn.

    Example: [bold]latticebpd chat --model smollm2-135m --show-blocks[/bold]
    Example: [bold]printf 'Name a river.\\nAnd another one.\\n' | latticebpd chat --model smollm2-135m[/bold]
    """
    with err.status("loading the model") if err.is_terminal else err.capture():
        quiet_transformers()
        from latticebpd.conversation import Chat
        from latticebpd.loading import load

        constraint = model_options.constraint_of(json_schema, json_object, regex, choice, grammar)
        rule = model_options.sampling_rule(None, temperature, top_k, top_p, seed)
        loaded = load(model, lm, drafter=drafter_model, system_prompt=system_prompt, weights=weights)
        conversation = Chat(loaded, model_options.named_drafter(loaded, system, lm, None))
    in_terminal, answers = _in_terminal(), list[dict[str, Any]]()
    if in_terminal:
        keys = "Ctrl-C ends an answer, Ctrl-D the chat; /help lists the commands"
        err.print(f"{loaded.name}, weights: {loaded.weights}. {keys}.")
    for text in _turns(in_terminal):
        try:
            is_command = text.startswith("/") and "\n" not in text
            if is_command and text != RETRY:
                if _run_command(conversation, *text.partition(" ")[::2]):
                    break
            elif text:
                answer = conversation.retry if is_command else partial(conversation.answer, text)
                streamer = streamer_for(loaded.tokenizer, show_blocks)
                with _interrupts() if in_terminal else nullcontext(threading.Event()) as pressed:
                    options = {"streamer": streamer, "acceptance": rule, "max_new_tokens": max_new_tokens}
                    options["constraint"] = constraint
                    cost = _print_answer(conversation, partial(answer, **options), pressed)
                answers.append({"answer": conversation.turns[-1], **cost})
        except (ValueError, OSError) as error:
            if not in_terminal:
                raise
            err.print(f"latticebpd: error: {error}")
        except KeyboardInterrupt:
            if not in_terminal:
                raise
            err.print("interrupted; the turn is dropped", style="dim")
    return answers


def _in_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _turns(in_terminal: bool) -> Iterator[str]:
    """What the user types or pastes, or lines of standard input, up to the end; Ctrl-C drops what was typed."""
    read = _prompt() if in_terminal else input
    while True:
        try:
            yield read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not in_terminal:
                raise


def _prompt() -> Callable[[], str]:
    """Reads a turn from a terminal: it is edited, earlier ones are recalled, Tab completes commands, and what is pasted
    stays together."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter

    commands = WordCompleter([name.partition(" ")[0] for name in COMMANDS], sentence=True)
    session: PromptSession[str] = PromptSession("> ", completer=commands, complete_while_typing=False)
    return session.prompt


def _run_command(conversation: Chat, command: str, argument: str) -> bool:
    """Do what a line with a slash asks for; returns whether it ends the chat."""
    argument = argument.strip()
    if command == "/system":
        conversation.begin(argument or None)
    elif command == "/save" and argument:
        path = Path(argument).expanduser()
        conversation.save(path)
        err.print(f"{len(conversation.turns)} turns in {path}", style="dim")
    elif command == "/new" and not argument:
        conversation.begin(conversation.system_prompt)
    elif command == "/help" and not argument:
        for name, does in COMMANDS.items():
            err.print(f"{name:14}{does}", soft_wrap=True)
    elif command != "/quit" or argument:
        raise ValueError(f"expected one of {', '.join(COMMANDS)}, got {command} {argument}".rstrip())
    return command == "/quit"


def _print_answer(conversation: Chat, answer: Callable[..., Generated], pressed: threading.Event) -> dict[str, int]:
    """Stream an answer, until it ends or Ctrl-C is pressed, and what it cost, which is returned too."""
    from latticebpd.decoding.decode_rows import accepts_numpy

    begun = time.perf_counter()
    stop = accepts_numpy(lambda tokens, scores: pressed.is_set())
    out = answer(stopping_criteria=[stop])
    seconds = time.perf_counter() - begun
    per_call = f", {out.block_efficiency:.2f} a call" if out.num_calls else ""
    read = f"{out.prompt_length - conversation.cache.shared} of {out.prompt_length} tokens of the conversation read"
    cost = f"{out.num_tokens} tokens{per_call}, {out.num_tokens / seconds:.1f} a second; {read}"
    err.print(f"{cost}{'; interrupted' * pressed.is_set()}", style="dim")
    return {"tokens": out.num_tokens, "calls": out.num_calls}


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """What the first Ctrl-C sets; the second one is a KeyboardInterrupt."""
    pressed = threading.Event()

    def handle(*_: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
