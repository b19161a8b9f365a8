"""Classifiers of texts: a BERT cut for 2, 4 and 8 classes (Vulcan's Table 11).

    python -m benchmarks.papers.text                                    # a small BERT on sentences of ten topics
    python -m benchmarks.papers.text --data 20news --base BERT --tokens 128 --steps 5000 --device cuda
    python -m benchmarks.papers.text --data 20news --base BERT --dry-run    # opens both, and lists what would be done

20news has `20news-bydate-train/` and `20news-bydate-test/`; BERT is a folder that transformers wrote, fine-tuned on all
20 groups. The paper does not say which classes its sub-tasks have: they are drawn by their number. Rows go to
records/text.json, or records/NAME_text.json for --data NAME; each derivation is done once.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bases import CACHE
from benchmarks.derivations import BATCH, LR, SEEDS, STEPS, task_classes
from benchmarks.markdown import RECORDS, Row, grouped, percent, seeds_text, table, wrapped
from benchmarks.sentences import train_bert, write_sentences
from benchmarks.sources import load_rows, open_base, refusals, store_rows
from edgevit import derive
from edgevit.data.task import open_task
from edgevit.train.settings import Training

TASKS, RATES, METHODS = (2, 4, 8), (0.6, 0.8), ("vulcan", "forge")
TEXTS = 400  # of each topic to train on
# Top-1 for 2, 4 and 8 classes: of the base among all classes, fine-tuned, and of Vulcan at each rate.
PUBLISHED = {"base": (77.60, 68.34, 72.71), "finetuned": (94.43, 87.95, 81.52),
             0.6: (94.56, 86.41, 81.66), 0.8: (93.16, 85.68, 80.19)}  # fmt: skip


def prepared(cache: Path) -> tuple[Path, Path]:
    """The sentences and the small BERT, which is trained once, in minutes."""
    data, base = cache / "sentences", cache / "sentences-bert"
    if not (base / "top1.json").is_file():
        write_sentences(data, TEXTS)
        (base / "top1.json").write_text(json.dumps(train_bert(data, base)))
    return data, base


def cases(names: Sequence[str], options: argparse.Namespace) -> list[Row]:
    """What identifies each derivation."""
    return [
        {
            "task": size, "classes": task_classes(names, size), "rate": rate, "method": method, "seed": seed,
            "steps": options.steps, "tokens": options.tokens,
        }
        for size in options.tasks for rate in options.rates for method in options.methods
        for seed in SEEDS[: options.seeds]
    ]  # fmt: skip


def row_of(case: Row, data: Path, base: Path, options: argparse.Namespace, progress: Any) -> Row:
    """Derive one; return its row."""
    training = Training(steps=case["steps"], batch_size=BATCH, lr=LR, seed=case["seed"], device=options.device)
    with tempfile.TemporaryDirectory() as scratch:
        made = derive(
            base=base, data=data, classes=case["classes"], rate=case["rate"], method=case["method"],
            out=Path(scratch) / "model", model_args=_tokens(options), training=training, finetune_base=True,
            progress=progress,
        )  # fmt: skip
    parts = {name: part and part.top1 for name, part in vars(made.record.accuracy).items()}
    derived = made.record.accuracy.derived
    assert derived is not None
    return {
        **case, "accuracy": parts, "test_texts": derived.images, "macs": made.model.spec.macs,
        "params": made.model.spec.params, "versions": made.record.versions,
    }  # fmt: skip


def _tokens(options: argparse.Namespace) -> dict[str, int]:
    return {} if options.tokens is None else {"tokens": options.tokens}


def section(rows: Sequence[Row]) -> str:
    """Format the table, with the published figures beside it; empty without rows."""
    if not rows:
        return ""
    lines = []
    for (task, rate, method), group in grouped(rows, "task", "rate", "method").items():
        place = TASKS.index(task) if task in TASKS else None
        published = PUBLISHED.get(rate, ()) if method == "vulcan" else ()
        figures = [
            percent([row["accuracy"][part] for row in group])
            for part in ("base_full_head", "base_restricted", "base_finetuned", "derived")
        ]
        of_paper = f"{published[place]:g}" if published and place is not None else ""
        lines.append([str(task), f"{rate:g}", method, *figures, f"{group[0]['macs'] / 1e6:.1f}", of_paper])
    titles = ["classes", "rate", "method", "base, all classes, %", "restricted, %", "fine-tuned, %", "derived, %",
              "M MACs", "published, %"]  # fmt: skip
    return "\n".join(
        [
            "## Classifiers of texts (Vulcan's Table 11)\n",
            wrapped(
                "A small BERT (128 x 4) on made sentences of ten topics, unless the rows are of a user's texts. "
                f"{seeds_text(rows)}, {rows[0]['steps']} steps of {BATCH} texts. Published figures are of BERT-Base on "
                "20 Newsgroups, whose classes the paper does not name: compare differences to the fine-tuned base "
                f"({', '.join(f'{value:g}' for value in PUBLISHED['finetuned'])} for {', '.join(map(str, TASKS))})."
            ),
            table(titles, lines),
        ]
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="20 Newsgroups, or other texts  [default: sentences made here]")
    parser.add_argument("--base", type=Path, help="folder of a BERT that transformers wrote  [with --data]")
    parser.add_argument("--tokens", type=int, help="tokens of a text  [default: all positions of the BERT]")
    parser.add_argument("--tasks", type=int, nargs="+", default=TASKS, help="numbers of classes")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dry-run", action="store_true", help="open base and texts, list the derivations, and stop")
    options = parser.parse_args()
    if (options.data is None) != (options.base is None):
        parser.error("--data and --base belong together")
    return options


def main() -> None:
    options = parsed()
    from edgevit.cli.console import Console

    progress = Console().progress
    with refusals():
        data, base = prepared(CACHE) if options.data is None else (options.data, options.base)
        model = open_base(base, model_args=_tokens(options), progress=progress)
        task = open_task(
            data, None, preprocessing=model.preprocessing, base_outputs=model.spec.outputs,
            base_names=model.release.labels or None,
        )  # fmt: skip
        wanted = cases(task.class_names, options)
        if options.dry_run:
            ids, _ = next(task.train.batches(1))
            print(f"{len(task.train)} texts to train on, {len(task.test)} to test, {ids.shape[1]} tokens each")
            for case in wanted:
                print(", ".join(f"{name} {value}" for name, value in case.items() if name != "classes"))
            return
        file = RECORDS / ("text.json" if options.data is None else f"{data.name}_text.json")
        rows = load_rows(file)
        for case in wanted:
            if not any(case.items() <= row.items() for row in rows):
                rows.append(row_of(case, data, base, options, progress))
                store_rows(file, rows)
    print(section(rows))


if __name__ == "__main__":
    main()
