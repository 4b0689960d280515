"""A server of completions in a thread of the test's own process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import uvicorn

from danlu.data.chat.template import Template
from danlu.data.tokenizer import Tokenizer
from danlu.serve.engine import Engine
from danlu.serve.http.app import Limits, application
from danlu.serve.http.serve import _bound
from danlu.serve.model import Model
from danlu.serve.torch_executor import TorchExecutor
from danlu.serve.worker import Worker

TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


class Server:
    def __init__(self, address: str, model: Model, engine: Engine) -> None:
        self.address, self.model, self.engine = address, model, engine
        self.client = openai.OpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0)

    def post(self, body: Any, path: str = "/v1/completions", key: str = "key", **more: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body)
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"} | more.pop("headers", {})
        return httpx.post(self.address + path, content=content, headers=headers, timeout=60, **more)

    def idle(self) -> bool:
        return not self.engine.busy and self.engine.cache.held == 0


@contextmanager
def serving(executor: TorchExecutor, tokenizer: Tokenizer, waiting: int = 16, **limits: Any) -> Iterator[Server]:
    model = Model("tiny", tokenizer, Template(TEMPLATE, "test", tokenizer), frozenset({tokenizer.end_id}))
    worker = Worker(Engine(executor), waiting)
    app = application(model, worker, Limits(**limits))
    with _bound("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{listening.getsockname()[1]}", model, worker.engine)
        finally:
            server.should_exit = True
            thread.join(15)
            assert not thread.is_alive()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
