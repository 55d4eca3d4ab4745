"""What a server may say instead of an answer: none of it is believed, and no key is repeated."""

from __future__ import annotations

import asyncio
import json

import pytest

from topobench.probes import serving_client, serving_servers, serving_session
from topobench.probes.serving_client import Target, explained
from topobench.probes.serving_framing import BadAnswer
from topobench.probes.serving_stream import RequestFailed, Stream
from topobench.probes.serving_windows import Served

KEY = "sk\"a/'+-4711-do-not-store"
TARGET = Target("http://127.0.0.1:1", "m", key=KEY)
TOKEN = b'data: {"choices": [{"text": " a"}]}\n\n'


def read(*pieces: bytes, wanted: int = 2) -> Served:
    """A request for so many tokens whose answer came in those pieces, checked."""
    served = Served(1, 0.0, 0.0, 16, wanted)
    stream = Stream(served, TARGET.mask, lambda _: None)
    stream.begin(200, "text/event-stream")
    for number, piece in enumerate(pieces):
        stream.take(piece, float(number))
    stream.check()
    return served


def usage(**more: str) -> bytes:
    """The last event, with numbers as JSON text."""
    told = {"prompt_tokens": "16", "completion_tokens": "2", **more}
    body = ",".join(f'"{key}":{value}' for key, value in told.items())
    return f'data: {{"choices": [], "usage": {{{body}}}}}\n\ndata: [DONE]\n\n'.encode()


NO_COUNTS = (
    *("Infinity", "-Infinity", "NaN", "1e999", "1" + "0" * 400, "1" + "0" * 30, "1" + "0" * 6000),
    *("-5", '"7"', "[1]", "{}", "true", "1.5", "2.0"),
)


@pytest.mark.parametrize("count", NO_COUNTS, ids=lambda c: c[:12])
def test_a_count_of_tokens_is_a_whole_number_that_can_be(count: str) -> None:
    assert read(TOKEN * 2, usage()).input_tokens == 16
    wrong = (
        *(usage(prompt_tokens=count), usage(completion_tokens=count)),
        usage(prompt_tokens_details=f'{{"cached_tokens": {count}}}'),
    )
    for told in wrong:
        with pytest.raises(RequestFailed) as error:
            read(TOKEN * 2, told)
        assert error.value.kind == "malformed"


def test_no_more_of_a_prompt_comes_from_a_cache_than_it_has() -> None:
    details = '{"cached_tokens": %d}'
    assert read(TOKEN, usage(prompt_tokens_details=details % 16)).cached == 16
    assert read(TOKEN, usage(prompt_tokens_details='{"cached_tokens": null}')).cached is None
    with pytest.raises(RequestFailed, match="prompt_tokens"):
        read(TOKEN, usage(prompt_tokens_details=details % 17))


@pytest.mark.parametrize("name", ["content", "reasoning_content", "refusal", "tool_calls"])
def test_each_kind_of_answer_counts_and_none_does_not(name: str) -> None:
    """The role, and a text that is empty or null, are no token."""
    told = '[{"index": 0}]' if name == "tool_calls" else '"a"'
    begin = ('"role": "assistant"', f'"{name}": null', f'"{name}": ""', f'"{name}": {told}')
    events = [f'data: {{"choices": [{{"delta": {{{d}}}}}]}}\n\n'.encode() for d in begin]
    found = read(*events, usage())
    assert (found.chunks, found.first, found.arrivals) == (1, 3.0, 1)


def test_a_single_token_may_have_no_text() -> None:
    """Half a letter: it came when the answer was finished. Of more tokens that is not known."""
    finished = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}\n\n'
    found = read(b": wait\n\n", finished, usage(completion_tokens="1"), wanted=1)
    assert (found.first, found.ended, found.output_tokens) == (1.0, 2.0, 1)
    for wanted, told in ((2, "2"), (1, "0")):
        with pytest.raises(RequestFailed, match="holds no text"):
            read(finished, usage(completion_tokens=told), wanted=wanted)


@pytest.mark.parametrize("error", [b'{"error": "full"}', b'{"object": "error", "message": "full"}'])
def test_an_error_within_a_stream_is_the_servers(error: bytes) -> None:
    with pytest.raises(RequestFailed, match="full") as told:
        read(TOKEN, b"data: " + error + b"\n\ndata: [DONE]\n\n")
    assert told.value.kind == "server_error"


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 100_000, b"5", b'{"choices": 5}'])
def test_events_that_no_server_means_are_malformed(data: bytes) -> None:
    with pytest.raises(RequestFailed) as error:
        read(b"data: " + data + b"\n\n")
    assert error.value.kind == "malformed"


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_end_in_each_way_that_events_may(end: bytes) -> None:
    """Cut after every byte, so that a line's end of two may come apart; nothing after its end."""
    data = (TOKEN * 2 + usage() + b"data: more\n\n").replace(b"\n", end)
    whole = read(data)
    apart = read(*(bytes([byte]) for byte in data))
    assert (whole.chunks, whole.output_tokens) == (apart.chunks, apart.output_tokens) == (2, 2)
    assert apart.first < apart.ended


def test_a_server_that_repeats_the_key_does_not_get_it_stored() -> None:
    """As it is, as JSON or Python write it, cut off, and in each place that a message quotes."""
    begin = KEY[:20]
    for said in (KEY, json.dumps(KEY), json.dumps(KEY).replace("/", "\\/"), repr(KEY), begin):
        refused = Stream(Served(1, 0.0, 0.0, 16, 2), TARGET.mask, lambda _: None)
        refused.begin(401, "text/plain")
        refused.take(f"\x1b[31mwrong\0 key {said}".encode(), 0.0)
        with pytest.raises(RequestFailed) as error:
            refused.check()
        assert str(error.value).startswith("[31mwrong key ")
        raised = (BadAnswer(f"it begins with {said.encode()!r}"), OSError(said))
        texts = [str(error.value), *(explained(r, TARGET).text for r in raised)]
        with pytest.raises(RequestFailed) as error:
            read(b"data: " + said.encode() + b"\n\n")
        texts.append(str(error.value))
        with pytest.raises(RequestFailed) as error:
            refused.begin(200, f"text/{said}")
        texts.append(str(error.value))
        for text in texts:
            assert "***" in text
            assert "4711" not in text
            assert begin not in text


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OverflowError("too large"), "wrong_data", "too large"),
        (BadAnswer("it begins with b'\\x15\\x03\\x03'"), "wrong_data", "so take https:"),
        (ConnectionResetError("gone"), "no_endpoint", "is the server up"),
    ],
)
def test_a_failed_first_contact_is_told_as_what_it_was(
    error: Exception, code: str, said: str
) -> None:
    found = explained(error, TARGET)
    assert found.code == code
    assert said in found.text


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ('{"data": [{"id": "a"}, {"id": "b"}]}', ["a", "b"]),
        ('{"data": [{"id": "a\\u0000"}, {"id": 5}, {"id": null}, {"id": ""}, {"id": "b"}]}', ["b"]),
        (f'{{"data": [{{"id": "{"a" * 301}"}}, {{"id": "{"w" * 301}"}}]}}', ["w" * 301]),
        *(
            (text, [])
            for text in ("[" * 200_000, "[]", "5", '{"data": 5}', '{"data": ["a"]}', "no")
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_models_are_names_that_can_be(listed: str, names: list[str]) -> None:
    """But for one that was asked for."""
    assert serving_servers._models(listed, "w" * 301) == names


def test_a_page_of_metrics_that_is_no_answer_is_none() -> None:
    async def look(begin: bytes) -> bool:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(begin + b"vllm:num_requests_waiting 1\n")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with serving_client.opened(Target(f"http://127.0.0.1:{port}", "m")) as client:
                return await serving_session._facts(client)

    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    for head, found in ((b"\r\n", True), (both, False), (b"Content-Encoding: gzip\r\n\r\n", False)):
        assert asyncio.run(look(b"HTTP/1.1 200 OK\r\n" + head)) is found
