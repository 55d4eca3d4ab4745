"""The metrics of a served request and of a window of load; each name is one definition."""

from __future__ import annotations

from topobench.reading import Better, Metric

TTFT = Metric("ttft_seconds", Better.LOWER, "from sending a request to its first token")
TTFT_FROM_SCHEDULE = Metric(
    "ttft_from_schedule_seconds",
    Better.LOWER,
    "from when a request was due to its first token; open loop only",
)
CLIENT_QUEUE = Metric(
    "client_queue_seconds", Better.LOWER, "from when a request was due to its sending; open loop"
)
TPOT = Metric(
    "tpot_seconds",
    Better.LOWER,
    "time of each token after the first: (end - first) / (tokens - 1) of a request",
)
ITL = Metric("itl_seconds", Better.LOWER, "gap between two arrivals of tokens, of all requests")
E2E = Metric("e2e_seconds", Better.LOWER, "from sending a request to its last token")
E2E_FROM_SCHEDULE = Metric(
    "e2e_from_schedule_seconds",
    Better.LOWER,
    "from when a request was due to its last token; open loop only",
)
OFFSET = Metric(
    "arrival_seconds", Better.NEITHER, "when a request was due, from the start of the load"
)
INPUT_COUNT = Metric("input_tokens_count", Better.NEITHER, "tokens of a prompt, as the server says")
OUTPUT_COUNT = Metric(
    "output_tokens_count", Better.NEITHER, "tokens of an answer, as the server says"
)
INPUT_RATE = Metric(
    "input_tokens_per_second", Better.HIGHER, "prompt tokens of answered requests by time"
)
OUTPUT_RATE = Metric("output_tokens_per_second", Better.HIGHER, "answer tokens by time")
REQUESTS = Metric("requests_per_second", Better.HIGHER, "answered requests by time")
GOODPUT = Metric(
    "goodput_requests_per_second", Better.HIGHER, "requests answered within every limit, by time"
)
GOODPUT_RATIO = Metric(
    "goodput_ratio", Better.HIGHER, "share of all requests answered within every limit"
)
WITHIN_WINDOWS = Metric(
    "windows_within_ratio", Better.HIGHER, "share of windows whose P99 kept the limit"
)
ERRORS = Metric("error_ratio", Better.LOWER, "share of requests that failed")
IN_FLIGHT = Metric("in_flight_count", Better.NEITHER, "requests in flight, mean of a window")
MOST_CONCURRENCY = Metric(
    "most_concurrency_count", Better.HIGHER, "largest concurrency that kept the limit"
)
MOST_RATE = Metric(
    "most_requests_per_second", Better.HIGHER, "largest request rate that kept the limit"
)
OVER_CONCURRENCY = Metric(
    "first_over_concurrency_count", Better.NEITHER, "smallest concurrency that broke the limit"
)
OVER_RATE = Metric(
    "first_over_requests_per_second", Better.NEITHER, "smallest request rate that broke the limit"
)
POWER = Metric("power_watts", Better.NEITHER, "power of the server's GPUs together")
GPU_MEMORY = Metric(
    "gpu_memory_peak_bytes", Better.NEITHER, "most memory in use on one of the server's GPUs"
)

METRICS = (
    *(TTFT, TTFT_FROM_SCHEDULE, CLIENT_QUEUE, TPOT, ITL, E2E, E2E_FROM_SCHEDULE, OFFSET),
    *(INPUT_COUNT, OUTPUT_COUNT, INPUT_RATE, OUTPUT_RATE, REQUESTS, GOODPUT, GOODPUT_RATIO),
    *(WITHIN_WINDOWS, ERRORS, IN_FLIGHT, MOST_CONCURRENCY, MOST_RATE, OVER_CONCURRENCY),
    *(OVER_RATE, POWER, GPU_MEMORY),
)
