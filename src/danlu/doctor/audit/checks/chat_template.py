"""Conversations are written otherwise than the weights have learned to read them."""

from __future__ import annotations

from pathlib import Path

from danlu.data.chat import template
from danlu.data.chat.forms import Message
from danlu.data.tokenizer import load as load_tokenizer
from danlu.doctor.audit.audit import Audit
from danlu.doctor.audit.material import Material
from danlu.doctor.evidence import NotEnoughData
from danlu.doctor.finding import Finding, Severity, Text

TURNS: list[Message] = [{"role": "user", "content": "Is it hot?"}, {"role": "assistant", "content": "It is."}]
SHOWN = 80


def check(material: Material) -> Finding | None:
    recipe = material.recipe
    weights, tokenizer, named = recipe.model.hugging_face, recipe.data.tokenizer.path, recipe.data.chat.template
    if recipe.train.samples == "text" or weights is None or tokenizer is None:
        raise NotEnoughData("no pre-trained model is trained on conversations")
    place = Path(weights).expanduser()
    learned = template.find(load_tokenizer(place), place)
    if learned is None:
        raise NotEnoughData(f"the tokenizer beside the weights in {place} has no chat template")
    used = template.load(material.tokenizer, tokenizer, named)
    theirs, ours = (each.render(TURNS, answer_next=False).text for each in (learned, used))
    if theirs == ours:
        return None
    return Finding(
        "chat_template",
        Severity.WARNING,
        0.85,
        Text("the chat template is not the one that the weights have learned", "对话模板与权重所学的模板不同"),
        (
            Text(f"the weights know a conversation as {theirs[:SHOWN]!r}", f"权重所学的对话格式：{theirs[:SHOWN]!r}"),
            Text(f"and are to be trained on {ours[:SHOWN]!r}", f"而训练所用格式：{ours[:SHOWN]!r}"),
        ),
        Text("use the template of the weights' own tokenizer", "使用权重自带 tokenizer 的模板"),
        {"data.chat.template": None} if named else {"data.tokenizer.path": weights},
        (
            Text(
                "another one on purpose: the model has to learn it anew",
                "有意更换模板：模型须重新学习",
            ),
        ),
    )


AUDIT = Audit(
    "chat_template",
    Text("conversations in a template that the weights do not know", "对话模板与权重不符"),
    "conversations, and pre-trained weights with a chat template",
    "a conversation of two turns that the two templates write differently",
    "a definition: a model that was tuned to one template takes another for plain text",
    Severity.WARNING,
    check,
    at_start=True,
)
