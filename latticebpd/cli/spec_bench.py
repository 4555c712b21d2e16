"""``latticebpd spec-bench``: the Spec-Bench questions, answered with and without drafts."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from latticebpd.cli.decode_options import IGNORE_BEAMS, NARROW, with_cpu_kernels, without_beams
from latticebpd.cli.lattice_options import BIGRAM, DRAFTER_MODEL, block_source
from latticebpd.cli.lm_option import check_asked
from latticebpd.console import err, out, print_json, progress, quiet_transformers, writable_file


def spec_bench(
    questions: Path = typer.Argument(..., help="The benchmark's question.jsonl."),
    limit: int | None = typer.Option(None, min=1, help="Questions per task; all by default."),
    model: Path | None = typer.Option(
        None, help="Any causal LM: directory, .gguf or name; the bundled one by default."
    ),
    lm: Path | None = typer.Option(
        None,
        help="Language model, FST or ARPA or a neural rescorer's directory; the bundled one with the bundled model.",
    ),
    system: str | None = typer.Option(
        None,
        "--system",
        "-s",
        help="Drafting system, as for `latticebpd generate`; by default 16-calibrated with a calibrated language "
        "model, copies+16-tree with heads, 16-copies without; of a block drafter as for `latticebpd generate`.",
    ),
    alpha: float | None = typer.Option(
        None, min=0.0, help="Its weight; by default what is stored with it for such a system, else 1."
    ),
    k: int | None = typer.Option(
        None, "-k", "--k", min=1, help="Arcs per slot; 16 by default, for calibrated trees what they were fitted to."
    ),
    drafter_model: Path | None = DRAFTER_MODEL,
    bigram: bool = BIGRAM,
    slots: int | None = typer.Option(
        None,
        min=1,
        help="Number of heads to use, each of which costs a projection; by default all, or what calibrated trees need.",
    ),
    max_new_tokens: int = typer.Option(128, min=1, help="Tokens per turn."),
    ignore_beams: bool = IGNORE_BEAMS,
    chat: bool | None = typer.Option(
        None, "--chat/--no-chat", help="Ask in the tokenizer's chat template; by default where it has one."
    ),
    system_prompt: str | None = typer.Option(None, help="System prompt of a chat; by default the template's own."),
    output: Path | None = typer.Option(
        None, "--output", "-o", callback=writable_file, help="Write the answers in the benchmark's own JSONL."
    ),
    narrow: bool = NARROW,
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

    from latticebpd.drafters import HeadLattices, LatticeSource, bundled, drafter_named
    from latticebpd.drafters.default_systems import default_block_system, default_system, lattice_shape
    from latticebpd.drafters.heads.blockwise import BlockwiseLM
    from latticebpd.drafters.pretrained import lm_beside, load_model, load_tokenizer
    from latticebpd.target.chat import prompt_format

    torch.set_num_threads(threads)
    directory = model or bundled.MODEL
    served = with_cpu_kernels(without_beams(load_model(directory), ignore_beams), narrow)
    tokenizer = load_tokenizer(directory)
    prompts = prompt_format(tokenizer, served, chat, system_prompt)
    rescored = lm or (bundled.LM if model is None else lm_beside(directory))
    source: LatticeSource | None = None
    if drafter_model is not None:
        name = system or default_block_system(lm, alpha)
        source = block_source(drafter_model, served, tokenizer, bigram, narrow)(
            *lattice_shape(k, slots, name, rescored)
        )
    else:
        name = system or default_system(rescored, alpha, has_heads=isinstance(served, BlockwiseLM))
        if isinstance(served, BlockwiseLM):
            source = HeadLattices(served, *lattice_shape(k, slots, name, rescored))
    check_asked(name, lm, alpha)
    drafter = drafter_named(name, source, rescored, alpha)
    with progress() as bar:
        task = bar.add_task("warming up", total=len(chosen))
        found = run(
            chosen,
            served,
            prompts,
            forward_func,
            max_new_tokens,
            on_question=lambda question: bar.update(task, advance=1, description=question.task),
            drafter=drafter,
        )
    if output is not None:
        write_answers(found.answers, output, f"{directory.name}-latticebpd")
    results = found.results()
    if json:
        print_json({
            "tasks": [
                {
                    "task": result.task,
                    "questions": result.questions,
                    "mean_accepted": result.mean_accepted,
                    "tokens_per_second": result.tokens_per_second,
                    "greedy_tokens_per_second": result.greedy_tokens_per_second,
                    "speedup": result.speedup,
                }
                for result in results
            ],
            "cut_prompts": found.cut,
            "differing_answers": found.differing,
        })  # fmt: skip
        return
    table = Table(box=SIMPLE_HEAD, title=f"Spec-Bench, up to {max_new_tokens} tokens a turn")
    table.add_column("task", no_wrap=True)
    for heading in ("questions", "mean accepted\ntokens", "tokens/s", "greedy\ntokens/s", "speed-up"):
        table.add_column(heading, justify="right")
    for result in results:
        numbers = (result.tokens_per_second, result.greedy_tokens_per_second)
        table.add_row(
            result.task,
            f"{result.questions}",
            f"{result.mean_accepted:.2f}",
            *(f"{n:.0f}" for n in numbers),
            f"{result.speedup:.2f}×",
        )
    out.print(table)
    if found.cut:
        err.print(f"{found.cut} prompts were longer than the model's context and lost their beginning", style="dim")
    if found.differing:
        err.print(f"{found.differing} answers differ from greedy decoding's", style="yellow")
