"""What clients may ask, checked: a field that is not supported is refused, never ignored."""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from danlu.errors import UserError
from danlu.serve.sampling import Sampling

Text = Annotated[str, Field(max_length=4_000_000)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Kind = TypeVar("Kind", bound="_Body")


class Schema(BaseModel):
    """A JSON schema with its name. Answers always follow it, so `strict` has no effect."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field("answer", max_length=64)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class Format(BaseModel):
    """What an answer is: any text, any JSON object, or JSON that follows a schema."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None

    @model_validator(mode="after")
    def _complete(self) -> Format:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type json_schema, and is needed there")
        return self

    @property
    def schema_to_follow(self) -> dict[str, Any] | None:
        """None: nothing is asked of the answer."""
        if self.json_schema is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


class _Body(BaseModel):
    """What chat and completions share. `user`, `metadata`, `store` and `service_tier` are notes to a provider, without effect."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str
    n: int = Field(1, ge=1, le=16)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | list[Stop] | None = None
    stream: bool = False
    stream_options: dict[str, bool] | None = None
    ignore_eos: bool = False
    response_format: Format | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None

    @field_validator("stop")
    @classmethod
    def _few(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and len(stop) > 16:
            raise ValueError("give at most 16")
        return stop

    @field_validator("*", mode="before")
    @classmethod
    def _absent(cls, value: Any, info: Any) -> Any:
        """A null is an absent field, as clients send it."""
        return cls.model_fields[info.field_name].get_default() if value is None else value

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.ignore_eos and self.schema_to_follow is not None:
            raise ValueError("ignore_eos: an answer that follows a schema ends with it")
        return self

    @property
    def schema_to_follow(self) -> dict[str, Any] | None:
        """The JSON schema of the answer; None: it may be any text."""
        return None if self.response_format is None else self.response_format.schema_to_follow

    @property
    def with_usage(self) -> bool:
        """A stream ends with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.get("include_usage"))

    def sampling(self, max_tokens: int, logprobs: int | None, number: int) -> Sampling:
        """The settings of the choice of this number."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        seed = secrets.randbits(63) if self.seed is None else self.seed
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=(seed + number) % 2**64,
            stop=tuple(stop),
            logprobs=logprobs,
            ignore_end=self.ignore_eos,
        )


class Completion(_Body):
    """POST /v1/completions."""

    prompt: Text | list[Text] | list[Token] | list[list[Token]]
    max_tokens: int = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: Literal[False] = False


class Part(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """A turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Part]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Its text, as templates read it."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        plain = {"role": "system" if self.role == "developer" else self.role, "content": content}
        return plain if self.name is None else {**plain, "name": self.name}


class Chat(_Body):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=10_000)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)

    @model_validator(mode="after")
    def _asked(self) -> Chat:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


def read(kind: type[Kind], body: bytes) -> Kind:
    """The request in a body. UserError: it is no JSON, or not such a request; names the field."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise UserError("the body is not JSON") from None
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise UserError(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from None
