"""Does lm-eval find the same scores through /v1/completions as with its own `hf` engine?

Run as `python -m tests.benchmarks.lm_eval_agreement` from the repository's root, after
`sh tests/benchmarks/peers/lm_eval.sh`. The task is 50 multiple-choice questions made here; each choice is
scored by the log-probabilities of an echoed prompt. Both compute in float32.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from common.config_loader import cache_folder, child_environment
from common.model_folder import resolve_model
from tests.benchmarks.peer_folder import peer_folder, recorded_version
from tests.benchmarks.report import Row, report
from tests.fakes.running_coordinator import running_coordinator

MODEL = "smollm2-135m"
TASK = "facts"
CAPITALS = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Egypt": "Cairo",
    "Russia": "Moscow",
    "Greece": "Athens",
    "China": "Beijing",
    "Germany": "Berlin",
    "Cuba": "Havana",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Peru": "Lima",
    "Norway": "Oslo",
    "Kenya": "Nairobi",
    "Poland": "Warsaw",
    "Ireland": "Dublin",
    "India": "New Delhi",
    "Canada": "Ottawa",
    "Iran": "Tehran",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "up": "down",
    "day": "night",
    "early": "late",
    "rich": "poor",
    "old": "young",
    "open": "closed",
    "wet": "dry",
    "full": "empty",
    "happy": "sad",
    "strong": "weak",
    "fast": "slow",
    "left": "right",
    "light": "dark",
}
SUMS = {f"{a} plus {b}": str(a + b) for a, b in zip(range(1, 16), range(17, 2, -1), strict=True)}
CONFIG = f"""
task: {TASK}
dataset_path: json
dataset_kwargs:
  data_files:
    test: QUESTIONS
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: " "
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def questions() -> list[dict[str, Any]]:
    """50 questions, each with four choices of its kind; the right one stands in turn at each place."""
    made: list[dict[str, Any]] = []
    for template, facts in (
        ("The capital of {} is", CAPITALS),
        ("The opposite of {} is", OPPOSITES),
        ("The sum {} equals", SUMS),
    ):
        answers = list(facts.values())
        for index, (subject, right) in enumerate(facts.items()):
            wrong = [answers[(index + step) % len(answers)] for step in (1, 4, 7)]
            place = index % 4
            choices = [*wrong[:place], right, *wrong[place:]]
            made.append({"question": template.format(subject), "choices": choices, "answer": place})
    return made


def write_task(folder: Path) -> None:
    """The task as lm-eval reads it."""
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in questions()))
    (folder / f"{TASK}.yaml").write_text(CONFIG.replace("QUESTIONS", str(data)))


def evaluate(
    tool: Path, task: Path, *, engine: str, arguments: dict[str, object]
) -> list[dict[str, Any]]:
    """What lm-eval notes of each question with an engine, in the order of the questions."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                str(tool),
                "run",
                *("--model", engine),
                "--model_args",
                ",".join(f"{name}={value}" for name, value in arguments.items()),
                *("--tasks", TASK, "--include_path", str(task), "--output_path", folder),
                "--log_samples",
            ],
            check=True,
            env=child_environment() | {"HF_DATASETS_CACHE": folder, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.DEVNULL,
        )
        (samples,) = Path(folder).rglob("samples_*.jsonl")
        answers = [json.loads(line) for line in samples.read_text().splitlines()]
    return sorted(answers, key=lambda answer: answer["doc_id"])


def log_likelihoods(answers: list[dict[str, Any]]) -> list[float]:
    """Of every choice of every question."""
    return [float(choice[0]) for answer in answers for choice in answer["filtered_resps"]]


def main() -> None:
    """Evaluate twice and report."""
    peer = peer_folder("lm_eval")
    tool = peer / "bin" / "lm_eval"
    model = resolve_model(MODEL, cache=cache_folder())
    flags = {"model": str(model), "executor": "local", "pp": 2, "dtype": "float32"}
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder)
        write_task(task)
        theirs = evaluate(
            tool, task, engine="hf", arguments={"pretrained": model, "dtype": "float32"}
        )
        with running_coordinator(flags) as coordinator:
            ours = evaluate(
                tool,
                task,
                engine="local-completions",
                arguments={
                    "model": model.name,
                    "base_url": f"{coordinator.http_url}/v1/completions",
                    "tokenizer": model,
                    "num_concurrent": 8,
                },
            )
    num_items = len(questions())
    rows: list[Row] = [
        {
            "score": name,
            "hf": sum(answer[name] for answer in theirs) / num_items,
            "stepwire": sum(answer[name] for answer in ours) / num_items,
            "items apart": sum(a[name] != b[name] for a, b in zip(theirs, ours, strict=True)),
        }
        for name in ("acc", "acc_norm")
    ]
    pairs = zip(log_likelihoods(theirs), log_likelihoods(ours), strict=True)
    furthest = max(abs(a - b) for a, b in pairs)
    version = recorded_version(peer, "lib/python*/site-packages/lm_eval-*.dist-info/METADATA")
    title = f"{num_items} questions by lm-eval; log-likelihoods at most {furthest:.1e} apart"
    report(title, rows, peers={"lm-eval": version})


if __name__ == "__main__":
    main()
