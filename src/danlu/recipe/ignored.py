"""Settings that are valid, and do nothing beside the others."""

from __future__ import annotations

from danlu.model.shape import RopeScaling
from danlu.recipe.curate_sections import CurateSection, DedupSection
from danlu.recipe.section import Section
from danlu.recipe.sections import Recipe

_ROPE = {
    "original_max_sequence_length": ("llama3", "yarn"),
    "low_frequency_factor": ("llama3",),
    "high_frequency_factor": ("llama3",),
    "beta_fast": ("yarn",),
    "beta_slow": ("yarn",),
    "attention_factor": ("yarn",),
}
"""Which kinds of scaling read a field."""


def ignored(recipe: Recipe, device: str | None = None) -> list[str]:
    """One line for each setting that does nothing beside the others: its dotted path, its value and why.

    `device` is what the engine runs on, such as cuda:0, once that is known; train.device until then.
    A setting counts when it differs from its default: a run's own recipe.yaml spells out every default, given or not.
    """
    schedule, data, train, generate = recipe.train.schedule, recipe.data, recipe.train, recipe.generate
    found = []
    if schedule.name == "constant":
        found += _changed("train.schedule", schedule, ["final_ratio"], "train.schedule.name is constant")
    if (scaling := recipe.model.rope_scaling) is not None:
        unread = [name for name, kinds in _ROPE.items() if scaling.kind not in kinds]
        found += _changed("model.rope_scaling", scaling, unread, f"model.rope_scaling.kind is {scaling.kind}")
    why = f"train.objective is {train.objective}"
    if train.samples == "text":
        found += _changed("data.chat", data.chat, ["template", "supervise"], why)
    if train.objective != "distill":
        found += _changed("train", train, ["distill"], why)
    if train.distill is not None and train.distill.cache is None:
        found += _changed("train.distill", train.distill, ["top_k"], "train.distill.cache is null, so that nothing is kept")
    if train.objective != "dpo":
        found += _changed("train.dpo", train.dpo, ["beta", "label_smoothing"], why)
    if train.precision == "fp32":
        found += _changed("train", train, ["amp_level"], "train.precision is fp32")
    if data.validation_fraction == 0:
        found += _changed("train", train, ["evaluate_tokens"], "data.validation_fraction is 0, so that nothing is held out")
    if (curate := data.curate) is not None:
        found += _curation(curate)
    if recipe.parallel.processes == 1 and not recipe.parallel.auto:
        found += _changed("parallel", recipe.parallel, ["api"], "there is one process, and nothing is split")
    if recipe.memory.recompute == "none":
        found += _changed("memory", recipe.memory, ["recompute_every"], "memory.recompute is none")
    offloads = {name: getattr(recipe.memory, name) for name in ("offload_optimizer", "offload_parameters")}
    if (device or train.device) == "cpu":
        for name, place in offloads.items():
            if place == "host":
                found.append(f"memory.{name}: host does nothing, since a CPU computes in host memory; disk works here too")
    if "disk" not in offloads.values():
        found += _changed("memory", recipe.memory, ["offload_folder"], "nothing is offloaded to disk")
    if generate.temperature == 0:
        found += _changed("generate", generate, ["top_k", "top_p", "seed"], "generate.temperature is 0, which draws nothing")
    if train.compile and (recipe.watch.statistics_every or recipe.watch.histograms_every):
        found.append("watch.statistics_every: has no activations and attention logits, which train.compile fuses; the rest is")
    doctor = recipe.doctor
    if doctor.every == 0:
        found += _changed("doctor", doctor, ["time_share", "retain", "on_critical"], "doctor.every is 0")
    if doctor.every == 0 or doctor.on_critical != "rollback":
        why = "doctor.every is 0" if doctor.every == 0 else f"doctor.on_critical is {doctor.on_critical}"
        found += _changed("doctor", doctor, ["rollbacks", "skip_batches", "rollback_rate"], why)
    return found


def _curation(curate: CurateSection) -> list[str]:
    found = []
    if curate.quality is None and curate.quality_model is None and curate.boilerplate is None:
        found += _changed("data.curate", curate, ["noise_ratio"], "no stage has soft rules: quality, quality_model, boilerplate")
    if curate.quality is not None and curate.language is None:
        why = "data.curate.language is null, so that no text's language is known"
        found += _changed("data.curate.quality", curate.quality, ["languages"], why)
        for family, name in (("gopher", "least_stop_words"), ("chinese", "least_common_characters")):
            section = getattr(curate.quality, family)
            if section is not None:
                found += _changed(f"data.curate.quality.{family}", section, [name], why)
    if curate.dedup is not None:
        found += beside_equal(curate.dedup)
    return found


def beside_equal(dedup: DedupSection) -> list[str]:
    """Settings of MinHash where documents of the same words are looked for, which needs none."""
    if dedup.threshold < 1:
        return []
    names = ["permutations", "rows", "shingle", "verify"]
    return _changed("data.curate.dedup", dedup, names, "data.curate.dedup.threshold is 1, which takes no MinHash")


def _changed(above: str, section: Section | RopeScaling, names: list[str], why: str) -> list[str]:
    fields = type(section).model_fields
    values = {name: getattr(section, name) for name in names if getattr(section, name) != fields[name].default}
    return [f"{above}.{name}: {value} does nothing, since {why}" for name, value in values.items()]
