"""The model runner on a tiny checkpoint, step by step."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from common.errors import TensorError, WrongOrder
from common.requests import SamplingParams
from common.state_digest import state_digest
from common.step import ModelRunnerOutput, Phase, StepId
from common.worker_api import MemoryBudget
from tests.fakes.step_driver import GREEDY, GivenInputs, NoInputs, StepDriver, make_runner
from tests.fakes.tiny_checkpoint import write_tiny_llama
from worker_service.runner.model_runner import ModelRunner

torch.set_num_threads(1)

PROMPTS = {1: list(range(40, 70)), 2: [65, 66, 67], 3: [200, 3, 77, 12, 9, 150, 31]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in float32."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[int, list[int]]:
    """Ten greedy tokens of transformers for each prompt, the end token not special."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens: dict[int, list[int]] = {}
    for handle, prompt in PROMPTS.items():
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(10):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        tokens[handle] = ids[len(prompt) :]
    return tokens


Stages = Callable[[int], list[ModelRunner]]


@pytest.fixture(scope="module")
def stages(folder: Path) -> Stages:
    """Gives the runners of a replica of so many stages, loaded once, without requests."""

    @cache
    def load(num_stages: int) -> list[ModelRunner]:
        return [make_runner(folder, stage=i, num_stages=num_stages) for i in range(num_stages)]

    def fresh(num_stages: int) -> list[ModelRunner]:
        for runner in load(num_stages):
            runner.forget_requests()
        return load(num_stages)

    return fresh


def driver_with_prompts(
    stages: Stages, *, num_stages: int = 1, is_feeding: bool = False
) -> StepDriver:
    """A driver with all prompts added."""
    driver = StepDriver(stages(num_stages), is_feeding=is_feeding)
    for handle, prompt in PROMPTS.items():
        driver.add(handle, prompt)
    return driver


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("most_tokens", [5, 16])
@pytest.mark.parametrize("is_feeding", [False, True])
def test_chunked_batches_give_the_tokens_of_transformers(
    stages, reference, num_stages, most_tokens, *, is_feeding
):
    """Prefill chunks and decodes of several requests in one step, over one stage or several.

    Whether a row brings its token or names the step that sampled it.
    """
    driver = driver_with_prompts(stages, num_stages=num_stages, is_feeding=is_feeding)
    driver.run_all(10, most_tokens=most_tokens)
    assert {handle: driver.generated(handle) for handle in PROMPTS} == reference


def test_a_readmitted_request_continues_as_if_never_preempted(stages, reference):
    """Preempted in the middle of its output and readmitted with the tokens so far, in other blocks."""
    driver = driver_with_prompts(stages)
    driver.run_all(4, most_tokens=16)
    former_blocks = list(driver.sequences[1].blocks)
    driver.preempt(1)
    driver.run({2: 1})
    driver.run_all(10, most_tokens=16)
    assert {handle: driver.generated(handle) for handle in PROMPTS} == reference
    assert driver.sequences[1].blocks != former_blocks


def test_fed_requests_may_be_preempted_and_end(stages, reference):
    """Over two stages tokens of a request that is gone, or back with them, harm nobody."""
    driver = driver_with_prompts(stages, num_stages=2, is_feeding=True)
    driver.run_all(4, most_tokens=16)
    driver.preempt(1)
    driver.finish(2)
    driver.run({3: 1})
    driver.run_all(10, most_tokens=16)
    assert {handle: driver.generated(handle) for handle in (1, 3)} == {
        handle: reference[handle] for handle in (1, 3)
    }


def test_a_request_may_come_back_in_the_step_that_drops_it(stages, reference):
    """Drops are applied before additions, also for the same handle."""
    driver = driver_with_prompts(stages)
    driver.run_all(3, most_tokens=16)
    driver.preempt(3)
    driver.run_all(10, most_tokens=16)
    assert driver.generated(3) == reference[3]


def test_more_requests_may_live_than_a_step_has_rows(stages, reference):
    """Cohorts take turns: twelve requests with four rows a step, each as if alone."""
    driver = StepDriver(stages(1))
    for handle in range(12):
        driver.add(handle, PROMPTS[2])
    for num_tokens in (len(PROMPTS[2]), *[1] * 9):
        for first in range(0, 12, 4):
            driver.run(dict.fromkeys(range(first, first + 4), num_tokens))
    assert all(driver.generated(handle) == reference[2] for handle in range(12))


def test_a_partial_prefill_samples_nothing(stages):
    """The sample phase of a step without a complete row answers without tokens."""
    driver = driver_with_prompts(stages)
    result = driver.run({1: 5})
    assert result.key.phase is Phase.SAMPLE
    assert len(result.handles) == 0
    assert result.sampled_token_ids.num_rows == 0


def test_rows_without_tokens_are_left_out_of_the_output(stages):
    """Only rows that sampled have an entry, new requests before cached ones."""
    driver = driver_with_prompts(stages)
    driver.run({1: 20, 2: 3})
    result = driver.run({2: 1, 1: 4, 3: 7})
    assert result.handles.tolist() == [3, 2]


def test_seeded_draws_survive_preemption_and_other_batches(stages):
    """At temperature 0.8 a request draws the same tokens alone, in company and after readmission."""
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=1234)
    alone = StepDriver(stages(1))
    alone.add(1, PROMPTS[1], sampling)
    alone.run_all(10, most_tokens=64)
    busy = StepDriver(stages(1))
    busy.add(1, PROMPTS[1], sampling)
    busy.add(2, PROMPTS[2], dataclasses.replace(sampling, seed=9))
    busy.run_all(5, most_tokens=7)
    busy.preempt(1)
    busy.run_all(10, most_tokens=7)
    assert busy.generated(1) == alone.generated(1)


def test_logprobs_of_a_step_come_in_row_order(stages, reference):
    """One position per sampled token, the chosen one first, greedy being the most likely."""
    driver = StepDriver(stages(1))
    driver.add(1, PROMPTS[1])
    driver.add(2, PROMPTS[2], dataclasses.replace(GREEDY, num_logprobs=2))
    logprobs = driver.run({1: 30, 2: 3}).logprobs
    assert logprobs is not None
    assert logprobs.token_ids[:, 0].tolist() == [reference[1][0], reference[2][0]]
    assert logprobs.token_ids[:, 1].tolist() == logprobs.token_ids[:, 0].tolist()
    assert logprobs.ranks.tolist() == [1, 1]


def test_sample_before_execute_is_refused(stages):
    """Nothing is due: WrongOrder, and the state stays."""
    driver = driver_with_prompts(stages)
    driver.run({2: 3})
    runner = driver.runners[0]
    before = runner.digests()
    with pytest.raises(WrongOrder):
        runner.sample_tokens(StepId(epoch=1, generation=1, step=1))
    assert runner.digests() == before


def test_execute_twice_is_refused_and_the_first_step_can_still_be_sampled(stages, reference):
    """A second execute changes nothing; nor does the sample phase of another step."""
    driver = driver_with_prompts(stages)
    runner = driver.runners[0]
    first, second = driver.plan({2: 3}), driver.plan({3: 7})
    assert runner.execute_model(first, NoInputs()) is None
    before = runner.digests()
    with pytest.raises(WrongOrder):
        runner.execute_model(second, NoInputs())
    with pytest.raises(WrongOrder):
        runner.sample_tokens(second.step_id)
    assert runner.digests() == before
    result = runner.sample_tokens(first.step_id)
    assert result.sampled_token_ids.values.tolist() == reference[2][:1]
    assert driver.execute(second).sampled_token_ids.values.tolist() == reference[3][:1]


def test_a_stage_before_the_last_has_no_sample_phase(stages):
    """It answers with the hidden states of all its tokens and refuses to sample."""
    runner = stages(2)[0]
    driver = StepDriver([runner])
    driver.add(1, PROMPTS[1])
    tensors = runner.execute_model(driver.plan({1: 30}), NoInputs())
    assert isinstance(tensors, dict)
    assert tensors["hidden_states"].shape == (30, 64)
    with pytest.raises(WrongOrder):
        runner.sample_tokens(StepId(epoch=1, generation=1, step=1))


@pytest.mark.parametrize(
    "tensors",
    [{}, {"hidden_states": torch.zeros(29, 64)}, {"residual": torch.zeros(30, 64)}],
    ids=["nothing", "another step's rows", "another name"],
)
def test_tensors_of_another_step_are_refused(stages, tensors):
    """A later stage takes exactly one row of hidden states per token of the step."""
    runner = stages(2)[1]
    driver = StepDriver([runner])
    driver.add(1, PROMPTS[1])
    with pytest.raises(TensorError):
        runner.execute_model(driver.plan({1: 30}), GivenInputs(tensors))


def test_a_step_without_tokens_drops_what_is_finished(stages):
    """It answers at once with the empty output, and its digest is that of no requests."""
    driver = driver_with_prompts(stages)
    empty = driver.runners[0].digests()
    driver.run({2: 3})
    driver.finish(2)
    result = driver.run({}, want_state_digest=True)
    assert result.key.phase is Phase.EXECUTE
    assert len(result.handles) == 0
    assert (result.state_digest, result.kv_digest) == (empty.state, empty.kv)


def test_the_digest_tells_computed_tokens_apart(stages):
    """Another token in the prompt changes keys and values, and nothing a scheduler keeps books of."""
    results: list[ModelRunnerOutput] = []
    for last_token in (31, 31, 30):
        driver = driver_with_prompts(stages)
        driver.sequences[3].tokens[-1] = last_token
        results.append(driver.run({1: 8, 3: 7}, want_state_digest=True))
    first, same, other = results
    assert first.kv_digest == same.kv_digest != other.kv_digest
    assert first.state_digest == same.state_digest == other.state_digest


def test_the_digest_of_the_state_is_what_a_scheduler_computes(stages):
    """Every stage answers the digest of handles, block tables and counts as its scheduler has them."""
    driver = driver_with_prompts(stages, num_stages=2)
    driver.run({1: 8, 2: 3})
    result = driver.run({1: 8, 2: 1, 3: 7}, want_state_digest=True)
    expected = state_digest(
        (handle, [sequence.blocks], sequence.num_computed)
        for handle, sequence in driver.sequences.items()
    )
    assert result.state_digest == expected
    assert [runner.digests().state for runner in driver.runners] == [expected, expected]


def test_digests_are_answered_only_when_asked_for(stages):
    """They read the whole cache, so an ordinary step is spared them."""
    result = driver_with_prompts(stages).run({1: 8})
    assert (result.state_digest, result.kv_digest) == (None, None)


def test_logits_that_are_not_finite_fail_only_their_request(stages, reference):
    """The row gets an error, its neighbours their tokens; what was planned behind it is fed a 0."""
    driver = driver_with_prompts(stages, num_stages=2)
    output = driver.plan({1: 30, 2: 3, 3: 7})
    tensors = driver.runners[0].execute_model(output, NoInputs())
    assert isinstance(tensors, dict)
    hidden = tensors["hidden_states"].clone()
    hidden[31] = float("nan")
    driver.runners[1].execute_model(output, GivenInputs({"hidden_states": hidden}))
    result = driver.runners[1].sample_tokens(output.step_id)
    assert result.handles.tolist() == [1, 3]
    assert result.sampled_token_ids.values.tolist() == [reference[1][0], reference[3][0]]
    assert [handle for handle, _ in result.request_errors] == [2]
    sampled = driver.runners[1].last_sampled
    assert sampled.handles.tolist() == [1, 2, 3]
    assert sampled.positions.tolist() == [30, 3, 7]
    assert sampled.token_ids.values.tolist() == [reference[1][0], 0, reference[3][0]]


def test_forgetting_requests_frees_handles_and_what_is_due(stages, reference):
    """A new generation starts with unknown handles and no sample phase due."""
    driver = driver_with_prompts(stages)
    runner = driver.runners[0]
    runner.execute_model(driver.plan({2: 3}), NoInputs())
    runner.forget_requests()
    again = StepDriver([runner])
    again.add(2, PROMPTS[2])
    assert again.run({2: 3}).sampled_token_ids.values.tolist() == reference[2][:1]


@pytest.mark.parametrize("stage", [0, 1])
def test_profile_and_warm_up_leave_no_trace(folder, stage):
    """Both run made-up steps on a first and on a later stage and leave neither state nor cache."""
    runner = make_runner(folder, stage=stage, num_stages=2, num_blocks=None)
    report = runner.profile_run(MemoryBudget(kv_cache_bytes=1 << 20))
    assert report.kv_cache_bytes == 1 << 20
    assert report.activation_bytes > 64 * 64 * 4
    assert report.profile_seconds > 0
    runner.initialize_kv_cache(8)
    before = runner.digests()
    assert runner.warm_up() > 0
    assert runner.digests() == before


def test_a_sequence_as_long_as_the_model_allows_can_be_warmed_up(folder):
    """Limits of one row, one block and two tokens still give legal made-up steps."""
    runner = make_runner(
        folder, num_blocks=2, max_model_len=2, max_num_batched_tokens=1, max_num_seqs=1
    )
    runner.profile_run(MemoryBudget(kv_cache_bytes=1 << 20))
    runner.initialize_kv_cache(2)
    runner.warm_up()


def test_load_report_and_cache_size_are_those_of_the_stage(folder):
    """Half the layers need half the cache; what is allocated is what the specification says."""
    whole, half = make_runner(folder), make_runner(folder, stage=1, num_stages=2, num_blocks=None)
    assert whole.kv_cache_spec().bytes_per_block == 2 * 6 * 2 * 16 * 4 * 4
    assert half.kv_cache_spec().bytes_per_block * 2 == whole.kv_cache_spec().bytes_per_block
    assert half.initialize_kv_cache(10) == 10 * half.kv_cache_spec().bytes_per_block
    assert np.isclose(half.kv_cache_spec().groups[0].num_layers, 3)
