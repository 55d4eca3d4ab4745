"""
An OpenAI-compatible server of a random Llama: each token is a forward pass on the GPU it sees.

As a program: ``python gpu_server.py PORT OPTIONS_JSON``. Its version tells the GPU's UUID, the
bytes of its weights and the CPUs it may run on, so that a client can check where it really is.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from aiohttp import web
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass
class Options:
    """Size of the model and where it runs."""

    device: str = "cuda"
    width: int = 2048
    layers: int = 8
    vocabulary: int = 32_000


class Model:
    """A Llama with random weights in bf16."""

    def __init__(self, options: Options) -> None:
        config = LlamaConfig(
            vocab_size=options.vocabulary,
            hidden_size=options.width,
            intermediate_size=3 * options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.width // 64,
            num_key_value_heads=options.width // 256,
            max_position_embeddings=4096,
        )
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(options.device):
            self._llama = LlamaForCausalLM(config).eval()
        self._device = options.device
        self.weight_bytes = sum(p.nbytes for p in self._llama.parameters())
        self.step([1, 2, 3], None)

    def step(self, ids: list[int], cache: Any) -> tuple[int, Any]:
        """The next token after those, and the keys and values so far."""
        with torch.inference_mode():
            told = torch.tensor([ids], device=self._device)
            out = self._llama(input_ids=told, past_key_values=cache, use_cache=True)
            return int(out.logits[0, -1].argmax()), out.past_key_values


class Server:
    """One step of one request at a time, in the order they come."""

    def __init__(self, options: Options) -> None:
        self._model = Model(options)
        self._device = options.device
        self._gpu = ThreadPoolExecutor(1)
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/version", self.version)
        self.app.router.add_post("/v1/completions", self.complete)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "random-llama"}]})

    async def version(self, _: web.Request) -> web.Response:
        uuid = "none"
        if self._device == "cuda":
            uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        told = {
            "gpu": uuid,
            "visible": torch.cuda.device_count(),
            "weight_bytes": self._model.weight_bytes,
            "cpus": sorted(os.sched_getaffinity(0)),
        }
        return web.json_response({"version": json.dumps(told)})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt: list[int] = body["prompt"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        loop, ids, cache = asyncio.get_running_loop(), prompt, None
        for _ in range(body["max_tokens"]):
            token, cache = await loop.run_in_executor(self._gpu, self._model.step, ids, cache)
            ids = [token]
            await response.write(_event({"choices": [{"text": f" {token}"}]}))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": body["max_tokens"]}
        await response.write(_event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


if __name__ == "__main__":
    web.run_app(
        Server(Options(**json.loads(sys.argv[2]))).app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        print=lambda *_: None,
    )
