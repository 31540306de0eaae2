"""sherpa-onnx's server as a system to be measured: which of its texts answers which piece."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest

from oasr_backend.benchmark import sherpa_streams
from oasr_backend.benchmark.ruler import RefusedError
from oasr_backend.benchmark.sherpa_streams import SherpaServer
from oasr_backend.errors import ConfigError

SPEAKS = f"""#!{sys.executable}
import sys
from aiohttp import WSMsgType, web

[port] = [int(word.split("=")[1]) for word in sys.argv if word.startswith("--port=")]

async def speak(request):
    connection = web.WebSocketResponse()
    await connection.prepare(request)
    num_samples = num_texts = 0
    async for message in connection:
        if message.type == WSMsgType.BINARY:
            num_samples += len(message.data) // 4
            while num_samples >= 10960 + 10240 * num_texts:  # 67 frames, then 64 more each
                num_texts += 1
                await connection.send_json({{"text": f"text {{num_texts}}"}})
        elif message.data == "Done":
            await connection.send_str("Done!")
    return connection

app = web.Application()
app.router.add_get("/", speak)
web.run_app(app, host="localhost", port=port, print=None)
"""

PIECE = np.zeros(2560, np.float32)


def fake_server(tmp_path, monkeypatch, script: str) -> SherpaServer:
    path = tmp_path / "server"
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setattr(sherpa_streams, "SERVER", path)
    return SherpaServer("sherpa-server", tmp_path, tmp_path / "server.log", 2, 16, 4)


def test_a_piece_is_answered_with_the_text_of_the_chunk_that_it_completes(tmp_path, monkeypatch):
    server = fake_server(tmp_path, monkeypatch, SPEAKS)

    async def texts() -> list[str]:
        await server.start()
        answers = [server.send(0, number, PIECE, is_last=number == 9) for number in range(10)]
        try:
            return await asyncio.gather(*answers)
        finally:
            await server.stop()

    # The 5th piece completes the first chunk (12800 samples), the 9th the second one (23040).
    first, second = ["text 1"] * 4, ["text 2"] * 2
    assert asyncio.run(texts()) == ["", "", "", "", *first, *second]


def test_a_server_that_leaves_fails_those_who_wait(tmp_path, monkeypatch):
    server = fake_server(tmp_path, monkeypatch, SPEAKS.replace('send_str("Done!")', "close()"))

    async def errors() -> list[BaseException | None]:
        await server.start()
        waits = server.send(0, 0, PIECE, is_last=True)
        await asyncio.wait([waits])
        await asyncio.sleep(0)
        late = server.send(0, 1, PIECE, is_last=True)
        await asyncio.wait([late])
        await server.stop()
        return [waits.exception(), late.exception()]

    for error in asyncio.run(errors()):
        assert isinstance(error, RefusedError)
        assert str(error) == "the connection is gone"


def test_a_server_that_does_not_start_is_named_with_its_log(tmp_path, monkeypatch):
    server = fake_server(tmp_path, monkeypatch, "#!/bin/false\n")
    with pytest.raises(ConfigError, match=r"server did not start: its log is .*server\.log"):
        asyncio.run(server.start())
