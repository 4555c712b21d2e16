"""``latticebpd spec-bench``: the Spec-Bench questions, answered with and without drafts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from latticebpd.cli import model_options
from latticebpd.cli.tables import print_table
from latticebpd.console import err, print_json, progress, quiet_transformers, writable_file


def spec_bench(
    questions: Path = typer.Argument(..., help="The benchmark's question.jsonl."),
    limit: int | None = typer.Option(None, min=1, help="Questions per task; all by default."),
    model: Path | None = model_options.MODEL,
    lm: Path | None = model_options.LM,
    system: str | None = typer.Option(None, "--system", "-s", help="Drafting system, as for `latticebpd generate`."),
    alpha: float | None = model_options.ALPHA,
    k: int | None = model_options.K,
    drafter_model: Path | None = model_options.DRAFTER_MODEL,
    bigram: bool = model_options.BIGRAM,
    slots: int | None = typer.Option(None, min=1, help="Heads to use; by default all, or what calibrated trees need."),
    max_new_tokens: int = typer.Option(128, min=1, help="Tokens per turn."),
    ignore_beams: bool = model_options.IGNORE_BEAMS,
    chat: bool | None = model_options.CHAT,
    system_prompt: str | None = model_options.SYSTEM_PROMPT,
    output: Path | None = typer.Option(None, "--output", "-o", callback=writable_file, help="File of answers (JSONL)."),
    weights: str | None = model_options.WEIGHTS,
    threads: int = typer.Option(1, min=1, max=1024, help="Threads for the model."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Answer Spec-Bench's questions greedily and with drafts; print mean accepted tokens and the speed-up per task.

    Example: [bold]latticebpd spec-bench question.jsonl --limit 3[/bold]
    """
    from latticebpd.measuring.spec_bench import forward_func, read_questions, run, write_answers

    chosen = read_questions(questions, limit)
    quiet_transformers()
    import torch

    from latticebpd.loading import load

    torch.set_num_threads(threads)
    loaded = load(
        model, lm, drafter=drafter_model, chat=chat, system_prompt=system_prompt, ignore_beams=ignore_beams,
        weights=weights, bigram=bigram,
    )  # fmt: skip
    drafter = model_options.named_drafter(loaded, system or loaded.default_system(alpha), lm, alpha, k=k, slots=slots)
    with progress() as bar:
        task = bar.add_task("warming up", total=len(chosen))
        asked = (chosen, loaded.model, loaded.prompts, forward_func, max_new_tokens)
        answers = run(*asked, lambda question: bar.update(task, advance=1, description=question.task), drafter=drafter)
    if output is not None:
        write_answers(answers.answers, output, f"{loaded.name}-latticebpd")
    results = answers.results()
    if json:
        print_json({
            "tasks": [{**asdict(result), "speedup": result.speedup} for result in results],
            "cut_prompts": answers.cut,
            "differing_answers": answers.differing,
        })  # fmt: skip
        return
    headings = ("task", "questions", "mean accepted\ntokens", "tokens/s", "greedy\ntokens/s", "speed-up")
    rows = (
        [
            each.task, f"{each.questions}", f"{each.mean_accepted:.2f}", f"{each.tokens_per_second:.0f}",
            f"{each.greedy_tokens_per_second:.0f}", f"{each.speedup:.2f}×",
        ]
        for each in results
    )  # fmt: skip
    print_table(f"Spec-Bench, up to {max_new_tokens} tokens a turn", headings, rows, no_wrap=True)
    if answers.cut:
        err.print(f"{answers.cut} prompts were longer than the model's context and lost their beginning", style="dim")
    if answers.differing:
        err.print(f"{answers.differing} answers differ from greedy decoding's", style="yellow")
