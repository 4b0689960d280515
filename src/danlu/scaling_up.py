"""From runs of small sizes to a larger one: the loss to expect, and the learning rate and batch to train it with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from danlu import small_runs
from danlu.errors import UserError
from danlu.model.counts import parameter_parts
from danlu.plan.rates import AtSize, Best, Swept, best_rate, carried
from danlu.plan.scaling import PROBABILITY, Law, Point, fit
from danlu.plan.verdict import table
from danlu.plan.words import count
from danlu.recipe import Recipe, resolve_shape
from danlu.recipe.write import yaml_scalar
from danlu.small_runs import SmallRun

SWEEP = 3
"""Learning rates that a size must have been run with for one of them to be called the best."""
FAR = 30
"""Times the largest run, in parameters or tokens, from which on an answer says that it is a long way."""
WORSE = 1.01
"""Times the loss of a smaller model of as many tokens, from which on a larger one was not trained well."""
REPEATED = 4
"""Epochs from which on repeated tokens are worth less than new ones (Muennighoff et al. 2023, arXiv:2305.16264)."""


def scale_up(recipe: Recipe, patterns: Sequence[str]) -> dict[str, Any]:
    """What the runs say of the recipe, for JSON. UserError: too few runs, or of different families.

    {runs, sizes: [{parameters, runs, loss, learning_rate, low, high, inside}], parameters, tokens, probability, loss, loss_low,
    loss_high, irreducible, alpha, beta: [middle, low, high], learning_rate: {rate, low, high} or null, mup, patch, notes}
    """
    runs, notes = small_runs.read(small_runs.find(patterns))
    if not runs:
        raise UserError(f"--from-runs: no run is over ({notes[0]})")
    notes += small_runs.check_family(runs, recipe)
    shape = resolve_shape(recipe, None)
    finite = [run for run in runs if _sound(run)]
    law = fit(_points(finite))
    batch = _batch(finite)
    parameters = parameter_parts(shape).non_embedding
    found = _sizes(runs, batch)
    mup = recipe.model.mup is not None
    swept = [AtSize(each["parameters"], each["best"]) for each in found if each["best"] is not None]
    rate = carried(swept, parameters, transfers=mup) if swept else None
    notes += _untuned(finite, found, swept, mup)
    tokens = small_runs.trained_tokens(recipe)
    loss = law.loss(parameters, tokens)
    return {
        "runs": len(runs),
        "sizes": [_as_json(each) for each in found],
        "parameters": parameters,
        "tokens": tokens,
        "probability": PROBABILITY,
        "loss": loss.middle,
        "loss_low": loss.low,
        "loss_high": loss.high,
        **_law(law),
        "mup": mup,
        "learning_rate": None if rate is None else {"rate": rate.rate, "low": rate.low, "high": rate.high},
        "patch": _patch(recipe, batch, rate),
        "notes": [*notes, *_notes(finite, found, parameters, tokens, mup, rate)],
    }


def _points(runs: Sequence[SmallRun]) -> list[Point]:
    """The best run of each size and length: others have a learning rate or a batch that suits it less."""
    best: dict[tuple[int, int], float] = {}
    for run in runs:
        where = run.parameters, run.tokens
        best[where] = min(run.loss, best.get(where, run.loss))
    return [Point(*where, loss) for where, loss in sorted(best.items())]


def _batch(runs: Sequence[SmallRun]) -> int:
    """Samples a step of the best run of the largest size."""
    largest = max(run.parameters for run in runs)
    best = min((run for run in runs if run.parameters == largest), key=lambda run: run.loss)
    return best.recipe.train.global_batch


def _sizes(runs: Sequence[SmallRun], batch: int) -> list[dict[str, Any]]:
    """Each size that did not always diverge, with its best learning rate: of the longest runs of that batch that are a sweep."""
    by_size: dict[int, list[SmallRun]] = defaultdict(list)
    for run in runs:
        by_size[run.parameters].append(run)
    return [_size(parameters, each, batch) for parameters, each in sorted(by_size.items()) if any(map(_sound, each))]


def _sound(run: SmallRun) -> bool:
    return math.isfinite(run.loss)


def _size(parameters: int, runs: Sequence[SmallRun], batch: int) -> dict[str, Any]:
    by_length: dict[int, list[SmallRun]] = defaultdict(list)
    for run in runs:
        if run.recipe.train.global_batch == batch:
            by_length[run.tokens].append(run)
    sweeps = [
        each for _, each in sorted(by_length.items()) if len({run.rate for run in each}) >= SWEEP and any(map(_sound, each))
    ]
    best = best_rate([Swept(run.rate, run.loss) for run in sweeps[-1]]) if sweeps else None
    return {"parameters": parameters, "runs": len(runs), "loss": min(run.loss for run in runs), "best": best}


def _as_json(size: dict[str, Any]) -> dict[str, Any]:
    best: Best | None = size["best"]
    names = ("learning_rate", "low", "high", "inside")
    return {name: size[name] for name in ("parameters", "runs", "loss")} | dict(zip(names, best or [None] * 4, strict=True))


def _law(law: Law) -> dict[str, list[float]]:
    alpha, beta = law.exponents
    return {"irreducible": [*law.irreducible], "alpha": [*alpha], "beta": [*beta]}


def _patch(recipe: Recipe, batch: int, rate: Best | None) -> dict[str, Any]:
    """Fields of the recipe's train section that change; the tokens stay the same."""
    patch: dict[str, Any] = {}
    if batch != recipe.train.global_batch:
        patch = {"global_batch": batch, "steps": max(1, round(recipe.train.steps * recipe.train.global_batch / batch))}
    if rate is not None:
        patch["optimizer"] = {"learning_rate": float(f"{rate.rate:.3g}")}
    return patch


def _notes(
    runs: Sequence[SmallRun], found: Sequence[dict[str, Any]], parameters: int, tokens: int, mup: bool, rate: Best | None
) -> Iterator[str]:
    for small, large in combinations(_points(runs), 2):
        if small.tokens == large.tokens and large.loss > WORSE * small.loss:
            sizes = f"{count(large.parameters)} parameters end with a higher loss than {count(small.parameters)}"
            yield f"{sizes} on as many tokens: a law says otherwise, so look at their learning rate and at how long they train"
    if len({run.tokens for run in runs}) == 1:
        yield "all runs have as many tokens, so that what tokens are worth is not known from them"
    for what, here, most in (
        ("parameters", parameters, max(run.parameters for run in runs)),
        ("tokens", tokens, max(run.tokens for run in runs)),
    ):
        if here > FAR * most:
            yield f"{here / most:,.0f} times the {what} of the largest run is a long way: train a size in between"
    largest = max(run.index["splits"]["train"]["tokens"] for run in runs) if all(run.index for run in runs) else None
    if largest and tokens > REPEATED * largest:
        yield f"{tokens / largest:.0f} epochs of the runs' {count(largest)} tokens: repeated ones are worth less than new ones"
    if rate is None:
        yield f"no size was run with {SWEEP} learning rates or more, so that none can be called the best"
    elif not mup:
        yield "without model.mup the best learning rate changes with the size, and this one follows a trend"
    for each in found:
        if each["best"] is not None and not each["best"].inside:
            yield f"the best learning rate of {count(each['parameters'])} parameters is at the edge of its sweep: run one beyond"


def _untuned(runs: Sequence[SmallRun], found: Sequence[dict[str, Any]], swept: Sequence[AtSize], mup: bool) -> Iterator[str]:
    """Sizes without a sweep whose runs are all far from the rate that the swept ones ask for: their losses are too high."""
    for size in (each["parameters"] for each in found if each["best"] is None and swept):
        best = carried(swept, size, transfers=mup)
        low, high = (math.sqrt(best.rate * bound) for bound in (best.low, best.high))
        rates = [run.rate for run in runs if run.parameters == size]
        if not any(low <= rate <= high for rate in rates):
            said = f"{count(size)} parameters were run at {rates[0]:.1e}, and {best.rate:.1e} suits them"
            yield f"{said}: their loss is too high as it is, run that too"


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """The answer for a person."""
    size = f"{count(answer['parameters'])} parameters without embeddings, {count(answer['tokens'])} tokens"
    sure = f"{answer['probability']:.0%}"
    yield f"loss     {answer['loss']:.3f} ({sure}: {answer['loss_low']:.3f} to {answer['loss_high']:.3f}) with {size}"
    if (rate := answer["learning_rate"]) is not None:
        how = "unchanged, by µP" if answer["mup"] else "by the trend over the sizes"
        yield f"rate     {rate['rate']:.2e} ({sure}: {rate['low']:.2e} to {rate['high']:.2e}), {how}"
    terms = [f"{name} {_interval(answer[name])}" for name in ("alpha", "beta")]
    yield f"law      E + A / N^alpha + B / D^beta: E {_interval(answer['irreducible'])}, {', '.join(terms)}"
    for note in answer["notes"]:
        yield f"note     {note}"
    yield ""
    yield from table(("parameters", "runs", "best loss", "best rate", "between"), [_row(each) for each in answer["sizes"]])
    if answer["patch"]:
        yield ""
        yield "to train it so, put this into the recipe"
        yield f"train:    {yaml_scalar(answer['patch'])}"


def _interval(values: Sequence[float]) -> str:
    return f"{values[0]:.2f} ({values[1]:.2f} to {values[2]:.2f})"


def _row(size: dict[str, Any]) -> list[str]:
    rate, bounds = "not swept", ""
    if size["learning_rate"] is not None:
        rate, bounds = f"{size['learning_rate']:.2e}", f"{size['low']:.2e} and {size['high']:.2e}"
    return [count(size["parameters"]), str(size["runs"]), f"{size['loss']:.3f}", rate, bounds]
