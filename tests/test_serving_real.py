"""The probe serving against a real inference server, where one is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from probing import Listener, measure
from topobench.probes import serving_windows
from topobench.probes.serving import Serving
from topobench.probes.serving_load import WORDS
from topobench.server_definition import Server

NEEDED = ("transformers", "accelerate", "fastapi", "uvicorn", "openai")
LACKING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
MODEL = """
import json, sys
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
folder, words = sys.argv[1], json.loads(sys.argv[2])
vocabulary = {w: n for n, w in enumerate(dict.fromkeys(["<unk>", "<s>", "</s>", *words]))}
plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=plain, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
)
tokenizer.chat_template = "{% for m in messages %}<s> {{ m['content'] }} {% endfor %}"
tokenizer.save_pretrained(folder)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
    bos_token_id=1, eos_token_id=2,
)
model = LlamaForCausalLM(config)
model.generation_config.suppress_tokens = [0, 1, 2]
model.save_pretrained(folder)
"""
"""Makes a Llama of two small layers with random weights, and a word for each token.

Such a model ends some answers before their first word; suppressed, it never does.
"""


@pytest.mark.slow
@pytest.mark.skipif(
    bool(LACKING),
    reason=f"no real server: {', '.join(LACKING)} not installed; ./scripts/test-real does it",
)
def test_transformers_serve_is_started_asked_in_words_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random model on CPUs: its tokens are counted by the server itself, and exact."""
    monkeypatch.setattr(serving_windows, "LITTLE_TOLERANCE", 0.5)  # a short window, a shared host
    made = [sys.executable, "-c", MODEL, str(tmp_path), json.dumps(WORDS)]
    subprocess.run(made, check=True, capture_output=True)
    serve = (sys.executable, "-m", "transformers.cli.transformers", "serve", str(tmp_path))
    server = Server(
        "transformers",
        argv=(*serve, "--host", "127.0.0.1", "--port", "{port}", "--device", "cpu"),
        version=(sys.executable, "-c", "import transformers; print(transformers.__version__)"),
        env={"HF_HUB_OFFLINE": "1"},
    )
    for api in ("chat", "completions"):
        probe = Serving(
            server="transformers",
            server_definition=server.text,
            api=api,
            window=2.0,
            requests=4,
            ramp=0.5,
            lag_limit=10.0,
            input_tokens="64",
            output_tokens="8",
            concurrency=2,
        )
        listener = Listener()
        readings = measure(probe, listener.context(deadline_seconds=200))
        found = {r.metric: r for r in readings}
        told = listener.notes["server"]
        assert (told["prompts"], told["tokens_from"]) == ("words", "server")
        assert told["version"].startswith(("4.", "5."))
        (window,) = listener.notes["windows"]
        assert window["n"] >= 4
        assert window["error_classes"] == {}
        assert window["exact_prompts_ratio"] == 1.0
        assert set(found["input_tokens_count"].samples) == {64.0}
        assert set(found["output_tokens_count"].samples) == {8.0}
        assert found["ttft_seconds"].summary.median < found["e2e_seconds"].summary.median
