"""What is measured beside the steps: on batches, weights and models whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from danlu.data.order import sample_indices
from danlu.engines.base import Vitals
from danlu.model.presets import preset
from danlu.recipe import Recipe, resolve_shape
from danlu.train.invariants.accumulation import Accumulation
from danlu.train.invariants.batch import of_batch
from danlu.train.invariants.evaluation import Probe, interval
from danlu.train.invariants.repeats import Repeats
from danlu.train.invariants.weights import Weights

END = 9


def batch(rows: int = 4, length: int = 12) -> dict[str, np.ndarray]:
    tokens = np.random.default_rng(0).integers(0, 8, (rows, length + 1))
    return {"inputs": tokens[:, :-1].copy(), "targets": tokens[:, 1:].copy()}


# --- batches -----------------------------------------------------------------------------------------------------------------


def test_a_sound_batch() -> None:
    one = batch()
    found = of_batch(one, END)
    assert (found["batch/supervised"], found["batch/target_offset_1"]) == (1.0, 1.0)
    assert found["batch/target_offset_0"] < 0.4 and found["batch/target_offset_2"] < 0.4
    assert "batch/end_supervised" not in found, "no document ends in it"
    shares = np.unique(one["inputs"], return_counts=True)[1] / one["inputs"].size
    assert found["batch/entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    in_micro_batches = {name: array.reshape(2, 2, -1) for name, array in one.items()}
    assert of_batch(in_micro_batches, END) == found
    assert of_batch({name: torch.as_tensor(array) for name, array in one.items()}, END) == found


def test_what_is_masked_counts_for_nothing() -> None:
    one = batch()
    one["inputs"][:, 6], one["targets"][:, 5] = END, END
    one["targets"][:2, 5] = -100
    found = of_batch(one, END)
    assert found["batch/end_supervised"] == 0.5 and found["batch/supervised"] == 46 / 48
    assert found["batch/target_offset_1"] == 1.0
    one["targets"][:] = -100
    assert of_batch(one, END).keys() == {"batch/supervised", "batch/end_supervised", "batch/entropy"}


def test_neighbours_are_told_from_strangers() -> None:
    text = np.random.default_rng(1).integers(0, 50, 8 * 16 + 1)
    windows = {"inputs": text[:-1].reshape(8, 16), "targets": text[1:].reshape(8, 16)}
    assert of_batch(windows, END)["batch/neighbours"] == 1.0
    mixed = {name: array[[3, 0, 6, 2, 7, 4, 1, 5]] for name, array in windows.items()}
    assert of_batch(mixed, END)["batch/neighbours"] < 0.3


@pytest.mark.parametrize(("reshuffled", "same"), [(True, False), (False, True)])
def test_an_order_that_comes_again_is_told_from_a_new_one(reshuffled: bool, same: bool) -> None:
    samples = np.arange(100)[:, None] * 7 + np.arange(5)
    repeats = Repeats(100, 8)
    late = []
    for step in range(36):
        numbers = np.arange(8 * step, 8 * step + 8)
        order = sample_indices(numbers if reshuffled else numbers % 100, 100, 0)
        found = repeats.measure(step, samples[order])
        assert found["batch/repeated"] == 0.0, step
        late.append(found.get("batch/same_order"))
    assert all(share is None for share in late[:12]), "the first epoch repeats nothing"
    assert (np.median([share for share in late if share is not None]) > 0.9) == same


def test_samples_that_come_again_in_an_epoch_are_counted() -> None:
    repeats = Repeats(1000, 4)
    samples = np.arange(40).reshape(8, 5)
    assert repeats.measure(0, samples[:4])["batch/repeated"] == 0.0
    second = repeats.measure(1, samples[2:6])
    assert second["batch/repeated"] == 0.5
    assert repeats.measure(2, samples[[6, 6, 7, 7]])["batch/repeated"] == 0.5, "within a batch too"
    assert Repeats(1000, 4).measure(0, samples[2:6])["batch/hash"] == second["batch/hash"]
    assert second["batch/hash"] == int(second["batch/hash"]) < 2**48


def test_rows_that_validation_measures_are_met() -> None:
    samples = np.arange(40).reshape(8, 5)
    targets = np.where(np.arange(4)[:, None] < 3, 1, -100) + np.zeros((4, 5), int)
    repeats = Repeats(1000, 4, [{"inputs": samples[:4], "targets": targets}])
    assert len(repeats.held_out) == 3, "a row without a target is not measured"
    assert repeats.measure(0, samples[2:6])["batch/held_out"] == 0.25
    assert repeats.measure(1, samples[4:8])["batch/held_out"] == 0.0
    assert "batch/held_out" not in Repeats(1000, 4).measure(0, samples[:4])


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from danlu.train.invariants import repeats as module

    monkeypatch.setattr(module, "REMEMBERED", 10)
    repeats = Repeats(10**6, 4)
    for step in range(20):
        repeats.measure(step, np.arange(16).reshape(4, 4) + 100 * step)
        assert len(repeats.seen) <= 10


# --- weights -----------------------------------------------------------------------------------------------------------------


def vitals(rate: float = 1e-3, decay: float = 0.1, **samples: Any) -> Vitals:
    settings = {"learning_rate": rate, "weight_decay": decay}
    return Vitals({name: np.asarray(values, np.float32) for name, values in samples.items()}, settings)


def test_what_has_moved_is_told_from_what_has_not() -> None:
    weights = Weights(preset("llama-5m"))
    weights.begin(vitals(a=[3.0, 4.0], b=[1.0, 1.0]))
    found = weights.measure(vitals(a=[3.3, 4.0], b=[1.0, 1.0]))
    assert (found["sample/a/moved"], found["sample/b/moved"]) == (0.5, 0.0)
    assert "sample/b/moved" not in weights.measure(vitals(1e-8, a=[3.3, 4.5], b=[1.0, 1.0])), "too small a step to tell"


@pytest.mark.parametrize(("tied", "decay", "told"), [(False, 0.0, False), (False, 0.1, True), (True, 0.0, True)])
def test_rows_of_tokens_that_did_not_come_need_not_move(tied: bool, decay: float, told: bool) -> None:
    weights = Weights(preset("llama-5m").model_copy(update={"tied_embeddings": tied}))
    same = {"model.embed_tokens.weight": [1.0, 2.0]}
    weights.begin(vitals(**same))
    assert ("sample/model.embed_tokens.weight/moved" in weights.measure(vitals(decay=decay, **same))) is told


def test_half_precision_shows_in_the_bits() -> None:
    weights = Weights(preset("llama-5m"))
    values = np.random.default_rng(0).standard_normal(256)
    weights.begin(vitals(a=np.zeros(256)))
    assert weights.measure(vitals(a=values))["weights/bf16_share"] < 0.02
    assert weights.measure(vitals(a=torch.tensor(values).bfloat16().float().numpy()))["weights/bf16_share"] == 1.0


def test_an_engine_tells_its_weights_and_settings(recipe_of: Callable[..., Recipe], torch_engine: Any) -> None:
    recipe = recipe_of("train.optimizer.betas=[0.8, 0.9]", "train.optimizer.epsilon=1e-6", "train.optimizer.weight_decay=0.2")
    engine = torch_engine(recipe)
    engine.initialise()
    told = engine.vitals()
    for name, sample in told.samples.items():
        whole = engine.parameters[name].detach().numpy().ravel()
        assert min(128, len(whole)) <= len(sample) <= 256 and np.isin(sample, whole).all()
    assert told.optimizer == {
        "learning_rate": pytest.approx(3e-3),
        "beta1": 0.8,
        "beta2": 0.9,
        "epsilon": 1e-6,
        "weight_decay": 0.2,
        "decayed_vectors": 0,
        "left_out": 0,
        "kept_gradients": 0,
        "updates": 0.0,
    }
    engine.parameters["model.norm.weight"].requires_grad_(False)
    assert engine.vitals().optimizer["left_out"] == 1


# --- evaluations -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def probe(recipe_of: Callable[..., Recipe], torch_engine: Any, prepared: Any) -> Callable[[], dict[str, float]]:
    """Of a model whose weights are large enough that attention and positions matter."""
    recipe = recipe_of()
    engine = torch_engine(recipe)
    engine.initialise()
    with torch.no_grad():
        for parameter in engine.parameters.values():
            if parameter.ndim > 1:
                parameter.mul_(6)
    from danlu.data.batches import TrainingBatches

    source = TrainingBatches(prepared.train, sequence_length=32, global_batch=8, micro_batch=8, document_mask=True, seed=0)
    made = Probe(engine, 2, resolve_shape(recipe, prepared.vocab_size).max_sequence_length, True, True)
    return lambda: made.measure(source[0])


@pytest.mark.parametrize("mistake", ["none", "means of means", "zeroed between"])
def test_micro_batches_add_up(mistake: str, recipe_of: Callable[..., Recipe], torch_engine: Any, prepared: Any) -> None:
    from danlu.data.batches import TrainingBatches

    recipe = recipe_of("memory.micro_batch=2", "train.dropout=0.1")
    engine = torch_engine(recipe)
    engine.initialise()
    honest = engine._loss

    def wrong(batch: Any, scale: float, *rest: Any) -> Any:
        if mistake == "zeroed between":
            engine.optimizer.adamw.zero_grad()
        return honest(batch, scale if mistake != "means of means" else 1 / int((batch["targets"] != -100).sum()), *rest)

    if mistake != "none":
        engine._loss = wrong
    source = TrainingBatches(prepared.train, sequence_length=32, global_batch=8, micro_batch=8, document_mask=True, seed=0)
    before = {name: tensor.clone() for name, tensor in engine.parameters.items()}
    (ratio,) = Accumulation(engine, recipe).measure(source[0]).values()
    assert ratio == pytest.approx(1, abs=1e-5) if mistake == "none" else abs(ratio - 1) > 0.05
    assert all(torch.equal(tensor, before[name]) and tensor.grad is None for name, tensor in engine.parameters.items())
    assert not engine.optimizer.adamw.state
    assert not Accumulation(engine, recipe_of("memory.micro_batch=8")).measure(source[0]), "nothing is accumulated"


MOVES_NOTHING = ("probe/again", "probe/future", "probe/document", "probe/far")


def test_a_sound_model_moves_only_as_it_may(probe: Callable[[], dict[str, float]]) -> None:
    found = probe()
    assert all(found[name] < 1e-4 for name in MOVES_NOTHING), found
    assert found["probe/unplaced"] > 1e-3


@pytest.mark.parametrize("what", ["probe/future", "probe/document", "probe/far", "probe/unplaced"])
def test_each_question_finds_its_mistake(
    probe: Callable[[], dict[str, float]], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from danlu.engines.torch import decoder

    masks, attention = decoder.attention_masks, functional.scaled_dot_product_attention

    def ahead(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False) -> Any:
        return attention(q, k, v, attn_mask=attn_mask.maximum(attn_mask.transpose(-1, -2)))

    def rounded(self: Any, positions: Any) -> Any:
        angles = (positions[..., None, None].bfloat16() * self.frequencies.bfloat16()).float()
        return angles.cos(), angles.sin()

    if what == "probe/future":
        monkeypatch.setattr(decoder.F, "scaled_dot_product_attention", ahead)
    elif what == "probe/document":
        monkeypatch.setattr(decoder, "attention_masks", lambda start, t, _documents, *rest: masks(start, t, None, *rest))
    elif what == "probe/far":
        monkeypatch.setattr(decoder.Decoder, "_rotary", rounded)
    else:
        monkeypatch.setattr(decoder, "rotate", lambda x, *_: x)
    found = probe()
    assert found[what] == 0 if what == "probe/unplaced" else found[what] > 1e-2
    moved = {name: found[name] for name in MOVES_NOTHING if name != what and found[name] > 1e-3}
    assert not moved


def test_probes_cost_a_bounded_share() -> None:
    for rows, batch in ((2, 8), (2, 512), (16, 16)):
        passes = 10 * rows / batch + 2
        assert passes / (3 * interval(rows, batch)) <= 0.00401 and interval(rows, batch) >= 100
